"""Names and numbers of a sentence, and which of them came back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak.scoring import pieces as module
from gradleak.scoring.pieces import capitalised, numbers, pieces, total

words = st.lists(st.sampled_from(["Rosa", "Diaz", "ward", "6", "1,200", "went", "3.5", "to"]), max_size=8).map(
    " ".join
)


@pytest.fixture(autouse=True)
def by_capitals(monkeypatch):
    monkeypatch.setattr(module, "names_by", lambda: "capitals")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Rosa went home.", []),  # the first word has a capital anyway
        ("we met Rosa Diaz and Bob", ["Rosa Diaz", "Bob"]),
        ("Then Dr. Diaz left. Bob and I stayed in Leeds!", ["Diaz", "Leeds"]),
        ("She moved to O'Brien-Smith Road", ["O'Brien-Smith Road"]),
        ("lower case only", []),
        ("he met Diaz at 3.5 Diaz Rosa", ["Diaz", "Rosa"]),  # the second begins a sentence, as far as signs tell
        ("", []),
    ],
)
def test_capitalised(text, expected):
    assert capitalised(text) == expected


def test_numbers():
    assert numbers("On 05/03 at 9:30 he paid 1,200.50 for 3 x B12") == ["05/03", "9:30", "1,200.50", "3", "12"]


def test_tokens_of_a_model_are_told_apart_and_still_count():
    found = pieces("he paid 1,200 to O'Brien on 05/03", "on 05 / 03 to o ' brien he paid 1, 200")
    assert (found.numbers.found, found.numbers.total) == (2, 2)
    assert (found.names.found, found.names.total) == (1, 1)


@given(words, words)
def test_never_more_than_there_are(truth, guess):
    found = pieces(truth, guess)
    for count in (found.names, found.numbers):
        assert 0 <= count.found <= count.total
    whole = pieces(truth, truth)
    assert (whole.names.found, whole.numbers.found) == (whole.names.total, whole.numbers.total)
    assert found.names.total == whole.names.total


@given(words, words, words)
def test_more_text_never_lowers_a_count(truth, guess, more):
    fewer, longer = pieces(truth, guess), pieces(truth, f"{guess} {more}")
    assert longer.names.found >= fewer.names.found
    assert longer.numbers.found >= fewer.numbers.found


def test_names_by_spacy_leave_dates_to_the_numbers(monkeypatch):
    class Span:
        def __init__(self, text, label_):
            self.text, self.label_ = text, label_

    class Parsed:
        ents = (Span("Rosa Diaz", "PERSON"), Span("5 May", "DATE"), Span("Leeds", "GPE"))

    monkeypatch.setattr(module, "recogniser", lambda: lambda text: Parsed)
    assert module.names_by_spacy("Rosa Diaz left Leeds on 5 May.") == ("Rosa Diaz", "Leeds")


@given(st.lists(st.tuples(words, words), max_size=5))
def test_together_they_are_counted_as_one_by_one(sentences):
    each = [pieces(truth, guess) for truth, guess in sentences]
    whole = total(each)
    assert (whole is None) == (not each)
    if whole is not None:
        assert whole.names.found == sum(one.names.found for one in each)
        assert whole.numbers.total == sum(one.numbers.total for one in each)
        assert total([*each, None]) is None  # part of them would be taken for all
