"""NERR: a recall of what the truth names. The rule on given entities, spaCy itself where it is installed."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak import GradleakError, audit, score
from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.data.texts import Row
from gradleak.scoring.entities import named_entities, recogniser
from gradleak.scoring.metrics.nerr import entity_recall

names = st.lists(st.sampled_from(["Rosa", "Diaz", "Leeds", "May", "5"]), min_size=1, max_size=3).map(" ".join)
texts = st.lists(st.sampled_from(["rosa", "DIAZ", "leeds", "may", "5", "went", "to"]), max_size=8).map(" ".join)


@given(st.lists(names, min_size=1, max_size=4), texts)
def test_recall_by_looking_for_each_name(entities, guess):
    distinct = {entity.lower() for entity in entities}
    held = [entity for entity in distinct if f" {entity} " in f" {guess.lower()} "]
    assert entity_recall(entities, guess) == pytest.approx(100 * len(held) / len(distinct))


@given(st.lists(names, min_size=1, max_size=4), texts, texts)
def test_more_text_never_lowers_a_recall(entities, guess, more):
    assert entity_recall(entities, f"{guess} {more}") >= entity_recall(entities, guess)
    assert entity_recall(entities, ", ".join(entities)) == 100


def test_half_a_name_is_no_name():
    assert entity_recall(["Rosa Diaz"], "diaz rosa") == 0
    assert entity_recall(["Rosa Diaz"], "Rosa met Diaz") == 0
    assert entity_recall(["$", "-"], "signs are no words") is None


def test_only_sentences_that_name_something_count(tiny_bert, monkeypatch):
    known = {"Rosa moved to ward six.": ("Rosa", "six"), "The loan was refused.": ()}
    monkeypatch.setattr("gradleak.scoring.metrics.nerr.named_entities", known.__getitem__)
    found = Reconstruction(sentences=[Sentence(text="rosa moved", tokens=[1], confidence=1)])
    scored = score(found, list(known), tiny_bert, metrics=["nerr"])
    assert scored.metrics["nerr"] == 50
    assert ["nerr" in pair.scores for pair in scored.pairs] == [True, False]
    assert "nerr" not in score(found, list(known)[1:], tiny_bert, metrics=["nerr"]).metrics
    assert "nerr" not in score(found, list(known), tiny_bert).metrics


def test_an_audit_scores_entities_where_it_is_asked_to(tiny_bert, monkeypatch):
    """By a stand-in that takes the first word of every sentence with a capital R for a name."""

    class NoPrior:
        def sample(self, length, generator):
            return [7] * length

    monkeypatch.setattr("gradleak.attacks.control.load_prior", lambda *_: NoPrior())
    monkeypatch.setattr("gradleak.scoring.metrics.nerr.recogniser", lambda: None)
    monkeypatch.setattr(
        "gradleak.scoring.metrics.nerr.named_entities", lambda text: text.split()[:1] if text[0] == "R" else ()
    )
    rows = [Row("Rosa moved to ward six.", 0), Row("The loan was refused.", 1)]
    asked = {"data": rows, "attack": "dlg", "options": {"steps": 1}, "trials": 2}
    results = audit(tiny_bert, **asked, metrics=["nerr"])
    named = [trial.scores["nerr"] for trial in results.trials if "nerr" in trial.scores]
    assert len(named) == 1
    assert results.summary["nerr"].mean == named[0]
    assert "nerr" in results.control
    assert "nerr" not in audit(tiny_bert, **asked).summary


def test_without_spacy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    recogniser.cache_clear()
    with pytest.raises(GradleakError, match=r"pip install 'gradleak\[entities\]'"):
        recogniser()


def test_spacy_finds_names():
    pytest.importorskip("spacy")
    assert named_entities("Kenneth Lay met Jeff Skilling in Houston.") == ("Kenneth Lay", "Jeff Skilling", "Houston")
    assert named_entities("They were late again.") == ()
