"""What attacks see of a defence, and that what they make of it is least at the truth."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import ALL_KNOWN, TEXTS, secret_of, tiny_model

from gradleak import Client, TextModel, attack
from gradleak.attacks.evidence.defended import Seen, grid_step, surviving, what_shows
from gradleak.attacks.evidence.signal_fractions import signal_fractions
from gradleak.attacks.search.lamp import LampCos, LampL2L1
from gradleak.attacks.search.matching_attack import adapted
from gradleak.defenses.quantize import rounded
from gradleak.matching.distances import Distance
from gradleak.matching.dummies import Dummies
from gradleak.matching.engine import FactorEngine
from gradleak.updates.update import Update

LABELS = [0, 1, 1]


def update_of(model: TextModel, *defenses: str, rule: str = "fedsgd") -> Update:
    labels = LABELS if model.task == "classification" else None
    return Client(model, ALL_KNOWN, rule, defenses).update(TEXTS, labels, secret_of(1))


@pytest.mark.parametrize(
    ("defenses", "expected"),
    [
        ([], Seen()),
        (["noise:sigma=0.001"], Seen()),
        (["sign"], Seen(signs=True)),
        (["prune:ratio=0.9"], Seen(pruned=True)),
        (["prune:ratio=0.99"], Seen(pruned=True)),
        (["quantize:bits=2"], Seen()),
        (["mask:ratio=0.5"], Seen(masked=True)),
        (["prune:ratio=0.9", "noise:sigma=0.001"], Seen()),
        (["dpsgd:noise=0.1"], Seen(clipped=True)),
        (["dpsgd:noise=0.1", "sign"], Seen(signs=True, clipped=True)),
        (["frozen"], Seen()),
    ],
)
def test_what_shows(tiny_bert: TextModel, defenses: list[str], expected: Seen) -> None:
    assert what_shows(update_of(tiny_bert, *defenses), tiny_bert) == expected


def test_rounded_values_are_no_pruning() -> None:
    """A coarse grid and the rounding of weights both leave zeros; neither says that a coordinate was left out."""
    model = tiny_model("bert", "classification", width=64)
    for update in (update_of(model, "quantize:bits=4"), update_of(model, rule="fedavg:lr=1e-6")):
        assert what_shows(update, model) == Seen()


@given(st.integers(2, 8), st.integers(0, 999))
def test_the_step_of_a_grid_is_read_back(bits: int, seed: int) -> None:
    values = torch.randn(2000, generator=torch.Generator().manual_seed(seed))
    step = float(values.abs().max()) / (2 ** (bits - 1) - 1)
    assert grid_step(values) is None
    assert grid_step(rounded(values, bits)) == pytest.approx(step, rel=1e-3)


def test_coarser_grids_leave_less_signal() -> None:
    model = tiny_model("bert", "classification", width=64)
    totals = []
    for bits in (3, 5, 8):
        shares = signal_fractions(update_of(model, f"quantize:bits={bits}"), model)
        assert shares is not None
        totals.append(sum(shares.values()))
    assert totals == sorted(totals)
    assert totals[0] < totals[2]


@pytest.mark.parametrize("defense", ["sign", "mask:ratio=0.7", "mask:ratio=0.99"])
def test_the_truth_is_at_distance_zero_once_the_defence_is_known(tiny: TextModel, defense: str) -> None:
    update = update_of(tiny, defense)
    batch = tiny.encode(TEXTS)
    labels = batch.ids if tiny.task == "causal-lm" else torch.tensor(LABELS)
    truth = Dummies(tiny.embed(batch.ids)[None], batch.mask[None], labels[None], torch.zeros(1, dtype=torch.long))
    signs = defense == "sign"
    tokens = int(batch.mask.sum())
    ignoring = FactorEngine(tiny, [update.tensors], Distance("cosine"), tokens=tokens)
    knowing = FactorEngine(
        tiny,
        [update.tensors],
        Distance("sign" if signs else "cosine"),
        tokens=tokens,
        masks=None if signs else [surviving(update)],
    )
    assert float(knowing.values(truth)) == pytest.approx(0, abs=1e-3)
    assert float(ignoring.values(truth)) > 0.01


def test_sums_of_differences_give_way_where_sizes_are_lost() -> None:
    """Least squares against a clipped gradient looks for the wrong size; shares do not."""
    options = LampL2L1().options
    assert adapted(options, Seen()) is options  # type: ignore[arg-type]
    clipped = adapted(options, Seen(clipped=True))  # type: ignore[arg-type]
    assert (clipped.distance, clipped.regularization, clipped.prior_weight) == ("cosine", 1.0, 0.2)
    signs = adapted(LampCos().options, Seen(signs=True))  # type: ignore[arg-type]
    assert (signs.distance, signs.regularization, signs.prior_weight) == ("sign", 1.0, 0.2)


@pytest.mark.parametrize(
    "defense", ["sign", "prune:ratio=0.9", "mask:ratio=0.5", "quantize:bits=4", "dpsgd:noise=0.01"]
)
@pytest.mark.parametrize("name", ["lamp-cos", "auto"])
def test_every_defence_can_be_attacked_knowing_and_ignoring(tiny_bert: TextModel, defense: str, name: str) -> None:
    update = Client(tiny_bert, ALL_KNOWN, defenses=[defense]).update(["Loan refused."], [0], secret_of(0))
    short = {"steps": 3} if name == "auto" else {"steps": 3, "polish": 1}
    # Ignoring is matching's alone to do, and `auto` hands it on: of it, one defence says that it arrives.
    for adapt in (True, False) if name == "lamp-cos" or defense == "sign" else (True,):
        (found,) = attack([update], tiny_bert, name, adapt=adapt, **short)
        assert found.sentences
        assert found.loss is None or found.loss == found.loss  # not NaN


def test_updates_of_different_kinds_are_attacked_together_as_each_alone(tiny_bert: TextModel) -> None:
    """What a defence left in one update, or how many sentences it holds, must not decide about another."""
    chains = [[], ["sign"], ["prune:ratio=0.9"], ["mask:ratio=0.5"], [], ["noise:sigma=0.01"]]
    updates = [
        Client(tiny_bert, ALL_KNOWN, defenses=chain).update(TEXTS[:size], [0, 1, 0][:size], secret_of(0))
        for chain, size in zip(chains, [1, 1, 1, 1, 2, 2], strict=True)
    ]
    settings = {"steps": 3, "adapt": True, "prior": "none", "init_draws": 3, "init_orders": 0, "polish": 0}
    together = attack(updates, tiny_bert, "lamp-cos", seed=list(range(len(updates))), **settings)
    for number, (update, found) in enumerate(zip(updates, together, strict=True)):
        (alone,) = attack(update, tiny_bert, "lamp-cos", seed=[number], **settings)
        assert [s.tokens for s in found.sentences] == [s.tokens for s in alone.sentences], chains[number]
        assert found.loss == (None if alone.loss is None else pytest.approx(alone.loss, rel=1e-3, abs=1e-6))
        assert found.notes == alone.notes
