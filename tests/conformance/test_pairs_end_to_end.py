"""Encoder-decoders from the client to the answer: every attack, defence and audit ends in a result or in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from defence_settings import SETTINGS
from tiny import ALL_KNOWN, PAIR_CASES, TARGETS, TEXTS, secret_of, tiny_model

from gradleak import Client, GradleakError, attack, audit, contains, load_model, score
from gradleak.attacks import ATTACKS
from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.attacks.inversion.train_text import train_inverter
from gradleak.core.budget import Budget
from gradleak.defenses import DEFENSES

# They read sentences or tokens of both texts; all others say in a line that they cannot.
READ = ("auto", "bag", "control", "exact")
every_pair = pytest.mark.parametrize("family", PAIR_CASES)


@every_pair
def test_every_attack_ends_in_a_result_or_in_one_line(family: str) -> None:
    model = tiny_model(family, "seq2seq")
    update = Client(model, ALL_KNOWN).update(TEXTS[1:2], TARGETS[1:2])
    for name in ATTACKS.names():
        if name in READ:
            (found,) = attack(update, model, name, budget=Budget(seconds=0.3))
            assert found.sentences or found.bag or found.reasons
            continue
        with pytest.raises(GradleakError) as caught:
            attack(update, model, name)
        assert "\n" not in str(caught.value)
    with pytest.raises(GradleakError, match="pairs"):
        contains(update, model, TEXTS)
    with pytest.raises(GradleakError, match="pairs"):
        train_inverter(model, "nowhere")


@every_pair
def test_every_defence_runs(family: str) -> None:
    assert set(SETTINGS) == set(DEFENSES.names())
    model = tiny_model(family, "seq2seq")
    for setting in (own for name, own in SETTINGS.items() if name != "dpsgd"):
        update = Client(model, defenses=[setting]).update(TEXTS[:1], TARGETS[:1], secret_of(1))
        assert all(bool(torch.isfinite(tensor).all()) for tensor in update.tensors.values())
        (found,) = attack(update, model, "exact", budget=Budget(seconds=0.3))
        assert found.sentences or found.reasons or found.status == "budget-exhausted"


@pytest.mark.parametrize(
    ("family", "frozen"),
    [("t5", "regex:relative_attention_bias"), ("bart", "regex:embed_positions")],
)
def test_clipped_gradients_are_those_of_single_pairs(family: str, frozen: str) -> None:
    """Opacus against a plain loop; tables that it cannot separate must be frozen, and it says which."""
    pytest.importorskip("opacus")
    model = tiny_model(family, "seq2seq")
    with pytest.raises(GradleakError, match="freeze it: frozen:"):
        Client(model, defenses=["dpsgd:clip=0.5,noise=0"]).update(TEXTS[:2], TARGETS[:2])
    for name, parameter in model.module.named_parameters():
        parameter.requires_grad_(frozen.removeprefix("regex:") not in name)
    sent = Client(model, defenses=["dpsgd:clip=0.5,noise=0"]).update(TEXTS[:2], TARGETS[:2]).tensors
    alone = [
        Client(model).update([text], [target]).tensors for text, target in zip(TEXTS[:2], TARGETS[:2], strict=True)
    ]
    norms = [torch.stack([t.norm() for t in own.values()]).norm() for own in alone]
    for name, tensor in sent.items():
        expected = sum(own[name] * min(1.0, 0.5 / float(norm)) for own, norm in zip(alone, norms, strict=True)) / 2
        torch.testing.assert_close(tensor, expected, rtol=1e-3, atol=1e-6)


def test_an_audit_scores_both_texts(tmp_path: Path) -> None:
    model = tiny_model("bart", "seq2seq", width=64)
    data = tmp_path / "pairs.jsonl"
    rows = [{"source": text, "target": target} for text, target in zip(TEXTS, TARGETS, strict=True)]
    data.write_text("\n".join(map(json.dumps, rows)))
    results = audit(
        model, data=str(data), trials=1, batch_size=2, attack="exact", budget="60s", out=str(tmp_path / "out")
    )
    (trial,) = results.trials
    assert [pair.side for pair in trial.pairs] == ["source", "source", "target", "target"]
    assert all(pair.certified and pair.scores["exact_match"] == 100 for pair in trial.pairs)
    assert len(trial.truth) == 4
    table = tmp_path / "pairs.csv"
    table.write_text("source,summary\n" + "\n".join(f"{a},{b}" for a, b in zip(TEXTS, TARGETS, strict=True)))
    results = audit(
        model, data=str(table), label_column="summary", trials=1, batch_size=1, attack="bag", budget="60s"
    )
    assert results.trials[0].named is not None
    assert results.trials[0].named.recall == 100


def test_data_without_targets_is_refused_in_one_line(tmp_path: Path) -> None:
    model = tiny_model("t5", "seq2seq")
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(TEXTS))
    for source in (str(data), "builtin"):
        with pytest.raises(GradleakError, match="needs a target beside every text"):
            audit(model, data=source, trials=1, attack="bag")


def test_a_text_on_the_wrong_side_counts_for_nothing() -> None:
    model = tiny_model("t5", "seq2seq")
    row = model.content(model.encode(TEXTS[:1]).sentences()[0])
    guess = Sentence(text=model.decode(row), tokens=row, confidence=1.0, side="target")
    right = guess.model_copy(update={"side": "source"})
    wrong, fair = (
        score(Reconstruction(sentences=[each]), TEXTS[:1], model, targets=TARGETS[:1]) for each in (guess, right)
    )
    assert [pair.scores["exact_match"] for pair in fair.pairs] == [100, 0]
    assert [pair.scores["exact_match"] for pair in wrong.pairs] == [0, 0]


def test_fresh_adapters_go_where_they_are_asked_for() -> None:
    below = tiny_model("t5", "seq2seq")
    model = load_model(
        below.module, tokenizer=below.tokenizer, lora="r=2,targets=query+value+cross_query+cross_value"
    )
    names = {name.partition(".lora_")[0] for name in model.parameters()}
    assert len(names) == 2 * 2 + 2 * 4  # queries and values of both, and those of the cross-attention
    with pytest.raises(GradleakError, match="has no part"):
        load_model(below.module, tokenizer=below.tokenizer, lora="r=2,targets=cross")
