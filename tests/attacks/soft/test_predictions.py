"""What tokens explain of an update as predictions, against plain autograd; sentences by that alone."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch
from tiny import ALL_CASES, TEXTS, adapted_model, tiny_model

from gradleak import Client, TextModel, load_model
from gradleak.attacks.evidence.whitening import Moments
from gradleak.attacks.film.attribution import upper_layers
from gradleak.attacks.soft.predictions import (
    FEATURES,
    BagReader,
    Comparison,
    Predictions,
    View,
    comparison,
    labels_after,
    labels_along,
    views_of,
)
from gradleak.attacks.soft.rehearsal import gradient_of
from gradleak.core.budget import Budget

pytest.importorskip("peft")

OTHERS = ["Nobody came.", "It rained all day.", "We sold the house last year."]


@functools.cache
def first_round(layers: int = 4, width: int = 96) -> TextModel:
    """Adapters whose B is zero: A has no gradient, so that neither tokens nor states show."""
    below = tiny_model("llama", "causal-lm", layers=layers, width=width)
    return load_model(below.module, tokenizer=below.tokenizer, task="causal-lm", lora="r=12,targets=query+value,b=0")


MODELS = {"first round": first_round, "later": lambda: adapted_model(layers=4, width=96, rank=12)}


@pytest.fixture(params=MODELS, scope="module")
def known(request: pytest.FixtureRequest) -> tuple[TextModel, list[list[int]], Comparison, Predictions]:
    model = MODELS[request.param]()
    tensors = Client(model).update(TEXTS).tensors
    rows = model.encode(OTHERS).sentences()
    compared = comparison(
        model,
        views_of(model, 2),
        [Client(model).update(OTHERS[:2]).tensors, Client(model).update(OTHERS[1:]).tensors],
        rows,
        lambda row, wanted: gradient_of(model, [row], wanted),
        Budget(),
    )
    return model, model.encode(TEXTS).sentences(), compared, Predictions.of(model, compared, tensors)


def test_views_go_down_from_the_head() -> None:
    model = tiny_model("llama", "causal-lm", layers=5)
    assert views_of(model, 2) == [View(3, 5, False), View(3, 5, True), View(1, 3, False), View(1, 3, True)]
    assert views_of(model, 9)[-1] == View(0, 1, True)


def test_predictions_of_the_batch_explain_one_each_on_average(
    known: tuple[TextModel, list[list[int]], Comparison, Predictions],
) -> None:
    """The update is the mean of their gradients, so along its inverse they rise by one unit on average."""
    _, rows, compared, predictions = known
    for number, view in enumerate(compared.views):
        risen = []
        for row in rows:
            seen = predictions.along(row[:-1])
            for shift in (0.0, 1.0):
                states = seen.states + shift * seen.shifts[number][0]
                log_probs = (states.double() @ predictions.outputs.double().T).log_softmax(dim=1)
                risen.append((2 * shift - 1) * log_probs.gather(1, torch.tensor(row[1:])[:, None]).sum())
        total = float(sum(risen)) / predictions.moved[number][0].unit
        assert total / sum(len(row) - 1 for row in rows) == pytest.approx(1.0, rel=0.1), view


def test_the_model_itself_is_not_moved(known: tuple[TextModel, list[list[int]], Comparison, Predictions]) -> None:
    model, rows, compared, _ = known
    before = {name: weight.detach().clone() for name, weight in model.parameters().items()}
    Predictions.of(model, compared, Client(model).update(TEXTS).tensors).along(rows[0])
    assert all(torch.equal(before[name], weight) for name, weight in model.parameters().items())


def test_reading_token_by_token_is_reading_at_once(
    known: tuple[TextModel, list[list[int]], Comparison, Predictions],
) -> None:
    _, rows, _, predictions = known
    row, bag = rows[0], torch.tensor(sorted({token for row in rows for token in row}))
    wanted = labels_along(predictions, row, bag)
    reader = BagReader(predictions, bag)
    found = reader.first(torch.tensor([row[:2], rows[1][:2]]))
    for place in range(1, len(row)):
        for own, whole in zip(found, wanted, strict=True):
            # Differences of nearly equal states: what is explained is known to a few parts in a hundred.
            torch.testing.assert_close(own[0], whole[place], rtol=0.05, atol=0.05)
        if place + 1 < len(row):
            found = reader.further(torch.tensor([0]), torch.tensor([row[place + 1]]))
    for last, whole in zip(labels_after(predictions, row, bag), wanted, strict=True):
        torch.testing.assert_close(last[0], whole[-1], rtol=0.05, atol=0.05)


def test_a_forked_reading_leaves_the_first_as_it_was(
    known: tuple[TextModel, list[list[int]], Comparison, Predictions],
) -> None:
    _, rows, _, predictions = known
    reading = predictions.reading()
    reading.read(torch.tensor([row[:2] for row in rows]))
    fork = reading.forked(torch.tensor([2, 0]))
    forked = fork.read(torch.tensor([[rows[2][2]], [rows[0][2]]]))
    seen = reading.read(torch.tensor([[row[2]] for row in rows]))
    torch.testing.assert_close(forked.states, seen.states[[2, 0]])


def test_right_tokens_stand_above_what_chance_explains(
    known: tuple[TextModel, list[list[int]], Comparison, Predictions],
) -> None:
    _, rows, _, predictions = known
    bag = torch.tensor(sorted({token for row in rows for token in row}))
    right, wrong = [], []
    for row in rows:
        deviations = labels_along(predictions, row[:-1], bag)[1][..., 1::FEATURES].mean(dim=-1)
        true = bag[None] == torch.tensor(row[1:])[:, None]
        right.append(deviations[true])
        wrong.append(deviations[~true])
    among_wrong = torch.cat(wrong).quantile(0.95)
    assert float((torch.cat(right) > among_wrong).float().mean()) > 0.5


def test_layers_that_were_not_sent_are_left_out() -> None:
    model = first_round()
    tensors = {n: t for n, t in Client(model).update(TEXTS).tensors.items() if "layers.3." not in n}
    views, rows = [View(3, 4, False), View(2, 3, True)], model.encode([*OTHERS, *3 * TEXTS]).sentences()
    asked: list[list[str]] = []

    def gradient(row: Sequence[int], wanted: Sequence[str]) -> dict[str, torch.Tensor]:
        asked.append(list(wanted))
        return gradient_of(model, [row], wanted)

    known: dict[tuple[str, ...], Moments] = {}
    # A comparison that was cut goes on where it ended, and one that was not is asked nothing more.
    for over in (Budget(seconds=0), Budget(), Budget()):
        made = comparison(model, views, [tensors], rows, gradient, over, known)
        assert made.views == [View(2, 3, True)]
    assert len(asked) == len(rows)
    # No gradient is made of layers that nobody looks at.
    assert all("layers.2." in name for names in asked for name in names)


def test_layers_that_a_client_left_zero_explain_nothing(
    known: tuple[TextModel, list[list[int]], Comparison, Predictions],
) -> None:
    model, rows, compared, _ = known
    nothing = {name: torch.zeros_like(tensor) for name, tensor in Client(model).update(TEXTS).tensors.items()}
    _, explained = labels_along(Predictions.of(model, compared, nothing), rows[0], torch.arange(20))
    assert bool((explained[..., 0::FEATURES] == 0).all())
    assert bool(explained.isfinite().all())


@pytest.mark.parametrize("family", [name for name, task in ALL_CASES if task == "causal-lm"])
def test_copies_of_the_upper_layers_continue_every_family(family: str) -> None:
    """With no step taken, a copy makes of its first layer's input what the model makes of it, with a cache too."""
    from transformers import DynamicCache

    model = tiny_model(family, "causal-lm", layers=4)
    upper = upper_layers(model, 2, ())
    ids = model.encode(TEXTS[2:]).ids
    with torch.no_grad():
        plain = model.module.base_model(input_ids=ids, output_hidden_states=True, use_cache=False)
        between, cache = plain.hidden_states[2], DynamicCache()
        at_once = upper(inputs_embeds=between, use_cache=False).last_hidden_state
        upper(inputs_embeds=between[:, :-1], past_key_values=cache, use_cache=True)
        last = upper(inputs_embeds=between[:, -1:], past_key_values=cache, use_cache=True).last_hidden_state
    torch.testing.assert_close(at_once, plain.last_hidden_state, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last[:, 0], plain.last_hidden_state[:, -1], rtol=1e-4, atol=1e-5)
