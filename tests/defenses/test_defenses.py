"""Each defence does to the tensors what it says, where it says, and repeats by secret."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TEXTS, secret_of

from gradleak import Client, GradleakError, TextModel
from gradleak.core.secret import drawing_from
from gradleak.defenses import DEFENSES, parse_defenses
from gradleak.defenses.base import Defense
from gradleak.defenses.prune import Pruning
from gradleak.defenses.quantize import rounded

LABELS = [0, 1, 1]
EMBEDDING = "bert.embeddings.word_embeddings.weight"
QUERY = "bert.encoder.layer.0.attention.self.query.weight"


def sent(model: TextModel, *defenses: str, seed: int = 0, rule: str = "fedsgd") -> dict[str, torch.Tensor]:
    return dict(Client(model, client=rule, defenses=defenses).update(TEXTS, LABELS, secret_of(seed)).tensors)


def test_noise_has_its_size_and_repeats_by_secret(tiny_bert):
    plain = Client(tiny_bert).update(TEXTS, [0, 1, 1])
    client = Client(tiny_bert, defenses=["noise:sigma=0.5"])
    noisy = [client.update(TEXTS, LABELS, secret_of(number)) for number in (3, 3, 4)]
    name = "bert.embeddings.word_embeddings.weight"
    assert float((noisy[0].tensors[name] - plain.tensors[name]).std()) == pytest.approx(0.5, rel=0.05)
    assert torch.equal(noisy[0].tensors[name], noisy[1].tensors[name])
    assert not torch.equal(noisy[0].tensors[name], noisy[2].tensors[name])
    assert noisy[0].manifest.defenses == ("noise:sigma=0.5",)


def test_pruning_keeps_the_largest_coordinates_of_the_whole_update(tiny_bert: TextModel) -> None:
    plain, pruned = sent(tiny_bert), sent(tiny_bert, "prune:ratio=0.9")
    before, after = (torch.cat([t.flatten() for t in tensors.values()]) for tensors in (plain, pruned))
    kept = after != 0
    assert torch.equal(after[kept], before[kept])
    assert int(kept.sum()) == pytest.approx(0.1 * len(before), rel=0.01)
    assert float(before[kept].abs().min()) > float(before[~kept].abs().max())


@given(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]), min_size=2, max_size=40), st.floats(0.01, 0.99))
def test_pruning_keeps_its_share_also_of_equally_large_coordinates(values: list[float], ratio: float) -> None:
    tensors = {"a": torch.tensor(values[:1]), "b": torch.tensor(values[1:])}
    pruned = Pruning(ratio=ratio).apply(tensors, None, torch.Generator())  # type: ignore[arg-type]
    before, after = (torch.cat(list(each.values())) for each in (tensors, pruned))
    room = len(values) - max(1, round(ratio * len(values)))
    kept = after != 0
    assert int(kept.sum()) == min(room, int((before != 0).sum()))
    assert torch.equal(after[kept], before[kept])
    if bool(kept.any()):
        assert float(before[kept].abs().min()) >= float(before[~kept].abs().max())


def test_signs_can_be_pruned(tiny_bert: TextModel) -> None:
    """All are equally large; none was left."""
    sizes = torch.cat([tensor.flatten() for tensor in sent(tiny_bert, "sign", "prune:ratio=0.9").values()])
    assert int((sizes != 0).sum()) == len(sizes) - round(0.9 * len(sizes))


def test_noise_does_not_draw_what_dropout_draws(tiny_bert: TextModel) -> None:
    def noise(rule: str) -> torch.Tensor:
        return (
            sent(tiny_bert, "noise:sigma=1.0", seed=3, rule=rule)[EMBEDDING]
            - sent(tiny_bert, seed=3, rule=rule)[EMBEDDING]
        )

    with drawing_from(secret_of(3).child("dropout")):
        drawn = torch.randn(noise("fedsgd").shape)
    for rule in ("fedsgd", "fedsgd:mode=train"):
        assert abs(float(torch.corrcoef(torch.stack([noise(rule).flatten(), drawn.flatten()]))[0, 1])) < 0.1
    assert float(noise("fedsgd:mode=train").std()) == pytest.approx(1.0, rel=0.05)


def test_masking_zeroes_by_chance_and_repeats_by_secret(tiny_bert: TextModel) -> None:
    plain = sent(tiny_bert)[QUERY]
    first, again, other = (sent(tiny_bert, "mask:ratio=0.5", seed=seed)[QUERY] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first[first != 0], plain[first != 0])
    assert float((first == 0).float().mean()) == pytest.approx(0.5, abs=0.1)


def test_signs_are_signs(tiny_bert: TextModel) -> None:
    plain, signs = sent(tiny_bert), sent(tiny_bert, "sign")
    assert all(torch.equal(signs[name], plain[name].sign()) for name in plain)


@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=50), st.integers(2, 12))
def test_quantisation_errs_by_half_a_step_at_most(values: list[float], bits: int) -> None:
    tensor = torch.tensor(values, dtype=torch.float64)
    coarse = rounded(tensor, bits)
    step = float(tensor.abs().max()) / (2 ** (bits - 1) - 1)
    assert float((coarse - tensor).abs().max()) <= step / 2 * (1 + 1e-9)
    assert len(coarse.unique()) <= 2**bits - 1


def test_frozen_tables_are_missing_and_stay_put_in_local_steps(tiny_bert: TextModel) -> None:
    """Freezing is no mere leaving out: later local steps see the frozen table where it was."""
    assert EMBEDDING not in sent(tiny_bert, "frozen")
    assert EMBEDDING not in sent(tiny_bert, "frozen:parts=words")
    assert not any("layer.0" in name for name in sent(tiny_bert, "frozen:parts=none,names=*layer.0.*"))
    rule = "fedavg:batch=1,lr=0.5"
    assert not torch.allclose(sent(tiny_bert, "frozen", rule=rule)[QUERY], sent(tiny_bert, rule=rule)[QUERY])
    with pytest.raises(GradleakError, match="no parameter of"):
        sent(tiny_bert, "frozen:names=nothing*")
    with pytest.raises(GradleakError, match="nothing is left to train"):
        sent(tiny_bert, "frozen:names=*")


def test_only_chosen_layers_are_sent(tiny: TextModel) -> None:
    labels = LABELS if tiny.task == "classification" else None
    names = set(Client(tiny, defenses=["layers:send=2"]).update(TEXTS, labels).tensors)
    second = tiny.adapter.name_of(tiny.adapter.layers[1])
    assert names
    assert all(name.startswith(f"{second}.") for name in names)
    assert all(part.weight_name in names for part in tiny.adapter.parts[1].values())
    with pytest.raises(GradleakError, match="has layers 1 to 2, not 7"):
        Client(tiny, defenses=["layers:send=1+7"]).update(TEXTS, labels)


def test_chains_act_in_order(tiny_bert: TextModel) -> None:
    """Noise before signs is hidden by them; noise after them is not."""
    assert set(sent(tiny_bert, "noise:sigma=0.1", "sign")[QUERY].unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert len(sent(tiny_bert, "sign", "noise:sigma=0.1")[QUERY].unique()) > 100
    update = Client(tiny_bert, defenses=["prune:ratio=0.5", "quantize"]).update(TEXTS, LABELS)
    assert update.manifest.defenses == ("prune:ratio=0.5", "quantize:bits=8")


@pytest.mark.parametrize("name", DEFENSES.names())
def test_every_defence_says_what_it_does_and_what_it_reveals(name: str) -> None:
    kind = DEFENSES.get(name)
    assert DEFENSES.name_of(kind) == name
    assert len(kind.summary) > 20
    assert len(kind.reveals) > 10
    assert all(field.description for field in kind.model_fields.values())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("noize:sigma=1", "did you mean 'noise'"),
        ("noise:sigma=-1", "sigma"),
        ("noise", "sigma"),
        ("prune:ratio=1", "ratio"),
        ("mask:share=0.5", "unknown key 'share'"),
        ("quantize:bits=1", "bits"),
        ("layers:send=6-4", "not a choice of layers"),
        ("layers:send=0", "not a choice of layers"),
        ("frozen:parts=all", "parts"),
        ("dpsgd", "either noise or epsilon"),
        ("dpsgd:noise=1,epsilon=3", "either noise or epsilon"),
        ("dpsgd:epsilon=3", "needs rows, steps and batch"),
        ("dpsgd:noise=1,rows=10,batch=20", "larger than rows"),
    ],
)
def test_bad_defences_are_refused(spec: str, message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        parse_defenses([spec])


# --- what a defence says of itself ------------------------------------------------------------------

SETTINGS = {
    "noise": "sigma=1", "prune": "ratio=0.99", "mask": "ratio=0.5", "layers": "send=1", "dpsgd": "noise=1",
    "tree": "noise=1",
}  # fmt: skip


@pytest.mark.parametrize("name", DEFENSES.names())
def test_what_every_defence_says_of_itself_is_true(name: str, tiny_bert: TextModel) -> None:
    spec = f"{name}:{SETTINGS[name]}" if name in SETTINGS else name
    (defense,) = parse_defenses([spec])
    plain, once, again = sent(tiny_bert), sent(tiny_bert, spec), sent(tiny_bert, spec, seed=1)
    assert defense.random == any(not torch.equal(once[key], again[key]) for key in once)
    if defense.coordinatewise and not defense.random:
        alone = defense.apply({QUERY: plain[QUERY]}, tiny_bert, torch.Generator())
        assert torch.equal(alone[QUERY], once[QUERY])
    if not defense.lossy and not defense.random:
        factor = once[QUERY].norm() / plain[QUERY].norm()  # one that clips the whole update gives a multiple of it
        assert name in ("clip", "adaptiveclip") or factor == 1
        assert all(torch.allclose(once[key], factor * plain[key], rtol=1e-5, atol=0) for key in once)
    if not defense.clips and defense.leaves in ("largest", "some"):
        values = once[QUERY]
        assert (values == 0).any()
        assert torch.equal(values[values != 0], plain[QUERY][values != 0])
    assert (defense.leaves == "signs") == bool((once[QUERY].abs() == 1).all())


def test_the_defaults_are_the_worst_case() -> None:
    class Mine(Defense):
        pass

    assert (Mine.random, Mine.coordinatewise, Mine.lossy, Mine.leaves, Mine.clips) == (True, False, True, None, False)


def test_many_updates_are_defended_one_by_one_by_default(tiny_bert: TextModel) -> None:
    class Largest(Defense):
        def apply(self, tensors, model, generator):
            return {name: tensor / tensor.max() for name, tensor in tensors.items()}

    many = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
    assert Largest().apply_many(many, tiny_bert, torch.Generator())["a"].tolist() == [[0.5, 1.0], [0.75, 1.0]]
