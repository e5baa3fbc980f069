"""Words of a reconstruction that are right."""

from hypothesis import given
from hypothesis import strategies as st

from gradleak.report.highlight import highlight
from gradleak.scoring.text import rouge, words

sentences = st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "mat", "again"]), max_size=8).map(" ".join)


def test_highlight_knows_every_script():
    assert highlight("Доктор уехал", "доктор уехал домой")[0] == ("доктор", "pair")


@given(sentences, sentences)
def test_highlight_counts_what_rouge_counts(truth, guess):
    """Words marked in any colour are ROUGE-1's overlap; a perfect guess of two words or more is all green."""
    pieces = highlight(truth, guess)
    assert "".join(piece for piece, _ in pieces) == guess
    marked = sum(mark != "none" for _, mark in pieces)
    total = len(words(truth)) + len(words(guess))
    overlap = rouge(truth, guess)["rouge1"] / 100 * total / 2
    assert marked >= round(overlap) or total == 0
    if guess == truth and len(words(truth)) > 1:
        assert {mark for piece, mark in pieces if piece.strip()} == {"pair"}
