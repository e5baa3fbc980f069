"""Attacks on a part of the model: proofs where the part allows them, else matching, and words about why."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import ALL_KNOWN, TEXTS, secret_of, tiny_model, wide_model

from gradleak import Client, TextModel, attack, audit
from gradleak.attacks.evidence.defended import Seen, what_shows
from gradleak.attacks.evidence.lengths import total_tokens
from gradleak.attacks.spans.certify import Certifier
from gradleak.report.build import render
from gradleak.report.wording import threat_model
from gradleak.scoring.truth import truth_distance
from gradleak.verdict.gather import Gathered

QUICK = {"steps": 3, "prior": "none"}


def contents(model: TextModel, texts: list[str]) -> set[tuple[int, ...]]:
    return {tuple(model.content(row)) for row in model.encode(texts).sentences()}


@pytest.mark.parametrize(
    "observe", ["layer:1", "layers:1-2.query", "layers:1-2.value", "layer:1.query,ffn_in", "layer:1.q+layer:3.v"]
)
def test_parts_of_an_encoder_that_prove_whole_sentences(observe: str) -> None:
    model = wide_model("bert", "classification")
    (found,) = attack(Client(model, observe=observe).update(TEXTS[:2], [0, 1]), model, "auto", **QUICK)
    assert {tuple(s.tokens) for s in found.sentences if s.certified} == contents(model, TEXTS[:2])


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(
    "observe", ["layer:1", "layer:3", "layer:3.ffn_in", "layer:2.query,key,value", "layers:2-3.query,key,value"]
)
def test_any_layer_of_a_decoder_proves_sentences(family: str, observe: str) -> None:
    model = wide_model(family, "classification")
    (found,) = attack(Client(model, observe=observe).update(TEXTS[:2], [0, 1]), model, "auto", **QUICK)
    assert {tuple(s.tokens) for s in found.sentences if s.certified} == contents(model, TEXTS[:2])


def test_a_language_model_without_its_last_matrix_keeps_its_last_tokens() -> None:
    model = wide_model("gpt2", "causal-lm")
    (found,) = attack(Client(model, observe="layer:2").update(TEXTS[:2]), model, "auto", **QUICK)
    assert {tuple(s.tokens) for s in found.sentences} == {row[:-1] for row in contents(model, TEXTS[:2])}
    assert not any(s.certified for s in found.sentences)
    assert any("which this update does not hold" in note for note in found.notes)


def test_a_layer_and_the_next_are_used_together() -> None:
    model = wide_model("llama", "causal-lm")
    one, both = (
        Certifier(model, Client(model, observe=observe).update(TEXTS[:2])) for observe in ("layer:2", "layers:2-3")
    )
    assert [part.weight_name for part, _ in both.spans] == [
        one.spans[0][0].weight_name,
        model.adapter.parts[2]["query"].weight_name,
    ]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_likely_tokens_first_find_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also sentences that share a beginning, of which hurrying would miss one, and tokens that are not likely."""
    model = wide_model(family, "causal-lm")
    texts = [TEXTS[0], "Rosa moved to the ward.", TEXTS[1]]
    update = Client(model, observe="layer:3").update(texts)
    (slow,) = attack(update, model, "exact")
    monkeypatch.setattr("gradleak.attacks.exact.growing.LIKELIEST", 5)
    (quick,) = attack(update, model, "exact")
    assert {tuple(s.tokens) for s in quick.sentences} == {tuple(s.tokens) for s in slow.sentences}
    assert {tuple(s.tokens) for s in quick.sentences} == {row[:-1] for row in contents(model, texts)}
    assert set(quick.bag) == set(slow.bag)


@pytest.mark.parametrize("role", ["query", "key", "value"])
def test_one_matrix_of_the_first_layer_points_at_the_tokens(role: str) -> None:
    """No proof without a second span, but the tokens are known before matching begins."""
    model = wide_model("bert", "classification")
    update = Client(model, ALL_KNOWN, observe=f"layer:1.{role}").update(TEXTS[:1], [1])
    (found,) = attack(update, model, "auto", **QUICK)
    assert [s.stage for s in found.sentences] == ["subspace"]
    assert {tuple(s.tokens) for s in found.sentences} == contents(model, TEXTS[:1])
    assert any("exact recovery needs" in note for note in found.notes)


def test_what_is_deeper_is_matched_and_said() -> None:
    model = wide_model("bert", "classification")
    update = Client(model, ALL_KNOWN, observe="layer:3.attention_out").update(TEXTS[:1], [1])
    (found,) = attack(update, model, "auto", **QUICK)
    assert [s.stage for s in found.sentences] == ["lamp-cos"]
    assert any("holds no matrix of the first layer's attention" in note for note in found.notes)
    assert not any("too little" in note for note in found.notes)


@pytest.mark.parametrize("observe", ["head", "layer:4.query", "layer:4.ffn_in"])
def test_too_little_signal_is_said(observe: str) -> None:
    model = wide_model("bert", "classification")
    update = Client(model, ALL_KNOWN, observe=observe).update(TEXTS[2:], [1])
    (found,) = attack(update, model, "auto", **QUICK)
    assert any("holds too little" in note for note in found.notes)


@pytest.mark.parametrize("role", ["key", "ffn_in", "ffn_out"])
def test_defences_show_in_any_matrix(role: str) -> None:
    model = wide_model("bert", "classification")

    def seen(*defenses: str) -> Seen:
        update = Client(model, observe=f"layer:1.{role}", defenses=defenses).update(TEXTS[:1], [1], secret_of(0))
        return what_shows(update, model)

    assert seen() == Seen()
    assert seen("sign") == Seen(signs=True)
    assert seen("mask:ratio=0.5") == Seen(masked=True)
    assert seen("prune:ratio=0.5") == Seen(pruned=True)


def test_a_token_embedding_alone_is_not_matched() -> None:
    model = tiny_model("gpt2", "causal-lm")
    update = Client(model, observe="head").update(TEXTS[:1])
    (found,) = attack(update, model, "auto", **QUICK)
    assert not found.sentences
    assert any("matching was not tried: the update holds nothing" in note for note in found.notes)
    assert truth_distance(update, TEXTS[:1], None, model) is None


@pytest.mark.parametrize(
    "case", [("bert", "classification"), ("gpt2", "causal-lm"), ("llama", "causal-lm"), ("llama", "classification")]
)
def test_token_counts_are_read_from_any_single_matrix(case: tuple[str, str]) -> None:
    model = wide_model(*case)
    labels = [0, 1] if model.task == "classification" else None
    whole = sum(model.encode(TEXTS[:2]).lengths)
    for number in (1, 3):
        for roles in model.layer_roles:
            update = Client(model, observe=f"layer:{number}.{','.join(roles)}").update(TEXTS[:2], labels)
            # Without learned positions the first attention sees bare tokens, and repeated ones look the same.
            bare = model.adapter.positions is None and number == 1 and roles[0] in ("query", "key", "value")
            assert total_tokens(update, model, 2) == (None if bare else whole), roles
    for last in ("layer:4.ffn_in", "layer:4.query,key,value"):
        update = Client(model, observe=last).update(TEXTS[:2], labels)
        assert total_tokens(update, model, 2) == (None if labels else whole)


def test_a_result_says_what_was_observed(tiny_bert: TextModel) -> None:
    options = {"steps": 1, "init_draws": 1, "prior": "none"}
    results = audit(tiny_bert, trials=1, observe="layer:2.key", attack="lamp-cos", options=options)
    seen = results.scenario.observed
    assert seen is not None
    assert (seen.selection, seen.tensors, seen.parameters) == ("layer:2.key", 1, 256)
    assert seen.share == pytest.approx(100 * 256 / results.scenario.parameters)
    assert any("sees layer:2.key: 1 tensor, 256 parameters" in line for line in threat_model(results.scenario))
    assert "sees layer:2.key: 1 tensor," in render(Gathered(Path(), [results]))
