"""Text inverters from training to the attack, on a tiny language model; what they learn from and what they refuse."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import secret_of, tiny_model

from gradleak import Client, GradleakError, attack, score
from gradleak.attacks.inversion.auxiliary import gather_auxiliary
from gradleak.attacks.inversion.features import Guess, Structured
from gradleak.attacks.inversion.networks import IGNORED, NetworkSettings
from gradleak.attacks.inversion.sample_gradients import SampleGradients
from gradleak.attacks.inversion.text_problem import TextProblem
from gradleak.attacks.inversion.train_text import train_inverter, usual_network
from gradleak.attacks.inversion.training import TrainSettings
from gradleak.data.texts import read_data
from gradleak.data.windows import cut_rows, windows
from gradleak.defenses import parse_defenses
from gradleak.defenses.base import Defense
from gradleak.models.batch import Batch

LENGTH = 8
ROWS = read_data()
TEXTS = [row.text for row in ROWS]
NETWORK = NetworkSettings(length=LENGTH, width=32, layers=1, hidden=(32, 32))
QUICK = TrainSettings(steps=150, batch=32, lr=5e-3, check=50)


@pytest.fixture(scope="module")
def model():
    return tiny_model("gpt2", "causal-lm", width=32)


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    place = tmp_path_factory.mktemp("inverter")
    return place, *train_inverter(model, place, aux=TEXTS[:150], network=NETWORK, settings=QUICK)


def auxiliary(model, **given):
    return gather_auxiliary(TEXTS, model, length=LENGTH, **given)


def test_windows_are_texts_of_exactly_so_many_tokens(tiny):
    for row in cut_rows(ROWS[:20], tiny, LENGTH):
        (tokens,) = tiny.encode([row.text]).sentences()
        assert len(tokens) == LENGTH
        assert len(tiny.content(tokens)) == LENGTH - len(tiny.prefix) - len(tiny.suffix)


@settings(max_examples=50)
@given(text=st.text(max_size=80), length=st.integers(2, 12))
def test_windows_of_any_text(model, text, length):
    for piece, tokens in windows(text, model, length):
        assert model.encode([piece]).sentences() == [tokens]
        assert len(tokens) == length


def test_too_short_texts_are_said(model):
    with pytest.raises(GradleakError, match="no text of the data has 50 tokens"):
        cut_rows(ROWS[:3], model, 50)


def test_pseudo_data_has_the_frequencies_of_the_texts_and_is_fresh(model):
    aux = auxiliary(model, pseudo=True)
    drawn = aux.draw(0, 4000)
    assert drawn.shape == (4000, LENGTH)
    share, wanted = torch.bincount(drawn.flatten(), minlength=len(aux.counts)) / drawn.numel(), aux.counts
    assert torch.allclose(share, wanted / wanted.sum(), atol=0.01)
    assert torch.equal(drawn, aux.draw(0, 4000))
    assert not torch.equal(drawn, aux.draw(1, 4000))
    assert not torch.equal(aux.held_out(), drawn[: len(aux.held_out())])


def test_texts_come_once_an_epoch_and_held_out_ones_never(model):
    aux = auxiliary(model)
    count = len(aux.sequences)
    drawn = torch.cat([aux.numbers(step, 7) for step in range(count)])
    for epoch in range(7):
        assert sorted(drawn[epoch * count : (epoch + 1) * count].tolist()) == list(range(count))
    assert torch.equal(aux.draw(3, 7), aux.sequences[aux.numbers(3, 7)])
    own = {tuple(row) for row in aux.sequences.tolist()}
    assert len(own & {tuple(row) for row in aux.held_out().tolist()}) < len(aux.held_out()) / 10  # some texts repeat


def test_sizes_and_mixtures(model):
    other = ["zz " * 40] * 40
    aux = gather_auxiliary(TEXTS, model, length=LENGTH, size=60, other=other, share=0.25)
    everything = torch.cat([aux.sequences, aux.others])
    (strange,) = model.encode(["zz"]).sentences()
    foreign = (everything == strange[0]).any(dim=1).float().mean()
    assert 0.6 < float(foreign) < 0.8
    with pytest.raises(GradleakError, match="needs a size"):
        gather_auxiliary(TEXTS, model, length=LENGTH, other=other)


@pytest.mark.parametrize("features", ["structured", "hashed"])
@pytest.mark.parametrize("defense", [[], ["prune:ratio=0.9"], ["noise:sigma=0.001"]])
def test_features_in_training_are_those_of_updates(model, features, defense):
    """What the network learns from is what the attack will see, up to the noise that is drawn."""
    chain = parse_defenses(defense)
    problem = TextProblem(model, auxiliary(model), chain, NETWORK.model_copy(update={"features": features}))
    given, wanted = problem.draw(0, 3)
    guess = problem._guess(wanted, 0)
    for row in range(3):
        update = Client(model, defenses=chain).update([model.decode(wanted[row].tolist())], None, secret_of(0))
        tensors = {name: tensor[None] for name, tensor in update.tensors.items()}
        found = problem.features.of(tensors, Guess(guess.tokens[row, None], guess.known[row, None]))[0]
        if "noise" in str(defense):
            assert float((found - given[row]).abs().mean()) < float(given[row].abs().mean())
            assert not torch.equal(found, given[row])
        else:
            assert torch.allclose(found, given[row], rtol=1e-3, atol=1e-4 * float(given.abs().max()))


def test_kept_features_are_those_computed_anew(model):
    problem = TextProblem(model, auxiliary(model), [], NETWORK.model_copy(update={"features": "hashed"}))
    first, again = problem.draw(0, 5)[0].clone(), problem.draw(0, 5)[0]
    assert problem._kept is not None
    assert torch.equal(first, again)
    problem._kept = None
    assert torch.allclose(problem.draw(0, 5)[0], first, rtol=1e-3, atol=1e-4 * float(first.abs().max()))


def test_known_tokens_take_the_mixture_apart(model):
    """With all tokens known, the gradient of a layer's output at each position comes out as autograd has it."""
    features, ids = Structured(model, LENGTH), auxiliary(model).sequences[:4]
    batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool))
    tensors = SampleGradients(model, features.names).of(batch, ids)
    outputs = []
    last = model.adapter.parts[-1]["ffn_out"].module
    hook = last.register_forward_hook(lambda module, args, output: outputs.append(output))
    losses = model.example_losses(batch, ids)
    hook.remove()
    (wanted,) = torch.autograd.grad(losses.sum(), outputs)
    width, layers = wanted.shape[-1], len(model.adapter.layers)
    first = width + 1 + 3 * width * (layers - 1)
    likeness = []
    for known in (torch.ones_like(batch.mask), torch.zeros_like(batch.mask)):
        found = features.of(tensors, Guess(ids, known))[..., first : first + width]
        likeness.append(float(torch.cosine_similarity(found[:, :-1], wanted[:, :-1], dim=-1).mean()))
    assert likeness[0] > 0.9 > likeness[1]
    assert torch.equal(features.of(tensors, Guess(ids, torch.zeros_like(batch.mask))), features.of(tensors))


def test_special_tokens_are_not_learned(tiny_bert):
    problem = TextProblem(
        tiny_bert, gather_auxiliary(TEXTS, tiny_bert, length=LENGTH), [], usual_network(tiny_bert, length=LENGTH)
    )
    assert problem.settings.features == "hashed"
    _, wanted = problem.draw(0, 4)
    assert (wanted[:, [0, -1]] == IGNORED).all()
    assert (wanted[:, 1:-1] != IGNORED).all()


def test_examples_follow_from_the_step_alone(tiny_bert):
    """A resumed training meets the same classes, though another step reads a sequence first."""
    texts = [f"The loan {i} was refused on day {i + 7}." for i in range(300)]

    def problem():
        aux = gather_auxiliary(texts, tiny_bert, length=LENGTH)
        return TextProblem(tiny_bert, aux, [], usual_network(tiny_bert, length=LENGTH, hidden=(8, 8)))

    whole, resumed = problem(), problem()
    steps = 2 * len(whole.auxiliary.sequences) // 16  # in the second epoch all have been read before
    drawn = [whole.draw(step, 16)[0] for step in range(steps)]
    assert torch.allclose(resumed.draw(steps - 1, 16)[0], drawn[-1], atol=1e-6)


def test_a_classifiers_update_is_read_too(tiny_bert, tmp_path):
    """Hashed, with special tokens around and a label that is not known."""
    network = usual_network(tiny_bert, length=LENGTH, hidden=(16, 16), output="vocabulary")
    settings = TrainSettings(steps=4, batch=4, check=2)
    manifest, _ = train_inverter(tiny_bert, tmp_path, aux=TEXTS[:60], network=network, settings=settings)
    assert manifest.network["features"] == "hashed"
    (found,) = attack(
        Client(tiny_bert).update(["The loan was refused."], [1]), tiny_bert, "lti", inverter=str(tmp_path)
    )
    assert len(found.sentences[0].tokens) == LENGTH - 2
    assert found.lengths == [LENGTH]


def test_a_large_models_bins_stay_few(minilm):
    coordinates = sum(parameter.numel() for parameter in minilm.parameters().values())
    assert round(usual_network(minilm).share * coordinates) == 110_000
    with pytest.raises(GradleakError, match="features"):
        usual_network(minilm, features="hushed")


def test_it_reads_texts_it_was_not_trained_on(model, trained):
    place, manifest, accuracy = trained
    assert manifest.training.status == "completed"
    unseen = [row.text for row in cut_rows(ROWS[150:], model, LENGTH)][:20]
    updates = [Client(model).update([text]) for text in unseen]
    found = attack(updates, model, "lti", inverter=str(place))
    means = [score(one, [text], model).metrics["token_accuracy"] for one, text in zip(found, unseen, strict=True)]
    assert sum(means) / len(means) > 50  # guessing the commonest token gives about 5
    assert accuracy > 0.5
    assert all(0 < one.sentences[0].confidence <= 1 for one in found)


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"defenses": ["sign"]}, "with no defence, this update has sign"),
        ({"observe": "layer:1"}, "other tensors"),
        ({"client": "fedavg:lr=0.1"}, "trained for fedsgd"),
    ],
)
def test_other_updates_are_refused(model, trained, client, message):
    update = Client(model, **client).update(["The loan was refused."])
    with pytest.raises(GradleakError, match=message):
        attack(update, model, "lti", inverter=str(trained[0]))


def test_sequences_the_model_cannot_take_are_refused(model, tiny_bert, tmp_path):
    """Too long, or nothing but special tokens."""
    for target, length, message in ((model, 65, "to 64 tokens.* not 65"), (tiny_bert, 2, "have 3 to 64 .* not 2")):
        with pytest.raises(GradleakError, match=message):
            train_inverter(target, tmp_path / "out", aux=TEXTS, network=usual_network(target, length=length))
    assert not (tmp_path / "out").exists()


def test_structured_features_of_what_is_not_sent_are_refused(model):
    with pytest.raises(GradleakError, match=r"structured features need transformer\.wpe\.weight, which is not sent"):
        TextProblem(model, auxiliary(model), parse_defenses(["layers:send=1"]), NETWORK)


def test_other_batches_models_and_folders_are_refused(model, trained, tmp_path):
    place = str(trained[0])
    with pytest.raises(GradleakError, match="of one example, this update is of 2"):
        attack(Client(model).update(TEXTS[:2]), model, "lti", inverter=place)
    another = tiny_model("gpt2", "causal-lm", width=32, seed=1)
    with pytest.raises(GradleakError, match="was trained for"):
        attack(Client(another).update(TEXTS[:1]), another, "lti", inverter=place)
    update = Client(model).update(TEXTS[:1])
    with pytest.raises(GradleakError, match="needs a trained network"):
        attack(update, model, "lti")
    with pytest.raises(GradleakError, match="is not an inverter's folder"):
        attack(update, model, "lti", inverter=str(tmp_path))


def test_a_manifest_that_lies_is_refused(model, trained, tmp_path):
    place, *_ = trained
    manifest = json.loads((place / "manifest.json").read_text())
    (tmp_path / "inverter.safetensors").write_bytes((place / "inverter.safetensors").read_bytes())
    for change, message in [({"width": 64}, "do not fit"), ({"width": "wide"}, "does not describe a network")]:
        (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"network": manifest["network"] | change}))
        with pytest.raises(GradleakError, match=message):
            attack(Client(model).update(TEXTS[:1]), model, "lti", inverter=str(tmp_path))


class Shaken(Defense):
    """A user's own defence that says nothing of itself."""

    def apply(self, tensors, model, generator):
        return {name: tensor + torch.randn(tensor.shape, generator=generator) for name, tensor in tensors.items()}


def test_a_users_random_defence_is_drawn_anew_each_time(model):
    """Features of an update that comes differently each time must not be kept from its first time."""

    def of_two_epochs(*defenses):
        problem = TextProblem(model, auxiliary(model), defenses, NETWORK.model_copy(update={"features": "hashed"}))
        count = len(problem.auxiliary.sequences)
        return [problem.draw(i, count)[0][problem.auxiliary.numbers(i, count).argsort()] for i in (0, 1)]

    first, second = of_two_epochs(Shaken())
    assert not torch.allclose(first, second)
    first, second = of_two_epochs(*parse_defenses(["sign"]))
    assert torch.equal(first, second)
