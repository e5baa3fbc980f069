"""A sentence is whole only if all of it came back: what a tokenizer does not know is lost, nothing is no match."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tiny import tiny_model, wide_model

from gradleak import Client, GradleakError, Reconstruction, Sentence, TextModel, attack, audit, judge, score
from gradleak.report.sentences import sentence_table
from gradleak.report.wording import remarks
from gradleak.scoring.metrics.tokens import exact_match

EMOJI, CJK, UNSPACED = "😀", "我的女儿病了", "ไม่มี"
SPECIAL = ["[PAD]", "[UNK]", "[SEP]", "[CLS]", "</s>", "<s>"]
PIECES = st.sampled_from(["the", "loan", "was", "refused", ".", "ward", EMOJI, CJK, UNSPACED, *SPECIAL])
TEXTS = st.lists(PIECES, min_size=1, max_size=6).map(" ".join) | st.text(max_size=12)

BERT, GPT2 = tiny_model("bert", "classification"), tiny_model("gpt2", "causal-lm")


def best_recovery(text: str, model: TextModel) -> Sentence:
    """The most that an attack can give back: every token of the text that stands for some of it."""
    (row,) = model.encode([text]).sentences()
    tokens = model.content(row)
    return Sentence(text=model.decode(tokens), tokens=tokens, confidence=1.0)


def is_whole(text: str, model: TextModel) -> bool:
    """By the tokenizer alone: there is something, and no token of it is unknown or special.

    What separates the texts of a language model is no part of any.
    """
    tokens = model.tokenizer.convert_ids_to_tokens(model.tokenizer(text, add_special_tokens=False)["input_ids"])
    written = set(tokens) - ({"<s>", "</s>"} if model is GPT2 else set())
    return bool(written) and not written & {*SPECIAL, "[MASK]"}


@given(TEXTS, st.sampled_from([BERT, GPT2]))
@example(EMOJI, BERT)
@example("[PAD]", BERT)
@example(f"the {EMOJI} loan", BERT)
@example(CJK, BERT)
@example(f"the {EMOJI} loan {CJK}", GPT2)
@example("the loan was refused.", BERT)
def test_the_best_recovery_is_whole_only_if_nothing_was_lost(text: str, model: TextModel) -> None:
    try:
        guess = best_recovery(text, model)
    except GradleakError:
        assume(False)
    found = score(Reconstruction(sentences=[guess]), [text], model).metrics
    whole = is_whole(text, model)
    assert found["exact_match"] == 100 * whole
    assert (found["token_accuracy"] == 100) == whole
    if not whole:
        assert found["rougeL"] < 100
        assert found["rouge1"] < 100


@given(TEXTS, st.sampled_from([BERT, GPT2]))
@example("[PAD]", BERT)
def test_an_empty_recovery_matches_nothing(text: str, model: TextModel) -> None:
    empty = Reconstruction(sentences=[Sentence(text="", tokens=[], confidence=1.0, certified=True)])
    try:
        found = [score(answer, [text], model).metrics for answer in (empty, Reconstruction())]
    except GradleakError:
        assume(False)
    assert all(value == 0 for metrics in found for value in metrics.values())
    assert exact_match([], []) == 0


@pytest.mark.parametrize("text", [EMOJI, "[PAD]", f"{EMOJI} {EMOJI}", f"{EMOJI} the loan", CJK])
def test_no_verdict_calls_it_critical(text: str) -> None:
    found = audit(wide_model("bert", "classification"), data=[text], trials=1, attack="exact")
    (scenario,) = judge([found]).scenarios
    assert scenario.level != "critical"
    assert scenario.attacks[0].leaked.whole == 0
    assert scenario.attacks[0].leaked.certified == 0


def test_a_certificate_says_what_it_does_not_cover() -> None:
    model, text = wide_model("bert", "classification"), f"the {EMOJI} loan was refused."
    (found,) = attack(Client(model).update([text], [1]), model, "exact")
    (sentence,) = found.sentences
    assert sentence.certified
    assert sentence.lost == 1
    assert sentence.text == "the loan was refused."
    assert any("does not know" in note for note in found.notes)
    known = attack(Client(model).update(["the loan was refused."], [1]), model, "exact")[0]
    assert known.sentences[0].lost == 0
    assert not any("does not know" in note for note in known.notes)


def test_nothing_is_not_certified() -> None:
    model = wide_model("bert", "classification")
    (found,) = attack(Client(model).update([EMOJI], [1]), model, "exact")
    assert not any(sentence.certified for sentence in found.sentences)


def test_the_report_does_not_take_a_lost_token_for_a_wrong_certificate() -> None:
    texts = [f"the {EMOJI} loan was refused.", "your flight leaves at noon."]
    found = audit(wide_model("bert", "classification"), data=texts, trials=2, attack="exact")
    text = " ".join(remarks(found))
    assert "2 of 2 sentences carry a certificate" in text
    assert "1 of these 2 are exactly right" in text
    assert "1 holds tokens that the tokenizer does not know" in text
    shown = [str(cell) for cell in sentence_table(found).columns[2].cells]
    assert sum("✓ certified" in cell for cell in shown) == 2
    assert sum("but for 1 unknown token" in cell for cell in shown) == 1
