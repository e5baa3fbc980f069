"""The language of selections is read back as written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gradleak import GradleakError
from gradleak.models.families import ROLES
from gradleak.models.selection_text import LETTERS, layer_numbers, parse_selection


@given(
    st.sets(st.integers(1, 60), min_size=1, max_size=6),
    st.lists(st.sampled_from(ROLES), unique=True),
    st.lists(st.sampled_from(["all", "transformer", "head", "embeddings"]), max_size=3),
    st.booleans(),
)
def test_what_is_written_is_read(numbers: set[int], roles: list[str], others: list[str], short: bool) -> None:
    letters = {role: letter for letter, role in LETTERS.items()}
    written = "layers:" + "+".join(map(str, numbers))
    if roles:
        written += "." + ",".join(letters[role] if short else role for role in roles)
    pieces = parse_selection("+".join([written, *others]))
    assert (pieces[0].numbers, pieces[0].roles) == (tuple(sorted(numbers)), tuple(roles))
    assert [piece.kind for piece in pieces] == ["layers", *others]


@given(st.text(max_size=20))
def test_nonsense_is_read_or_refused_in_words(text: str) -> None:
    try:
        parse_selection(text)
    except GradleakError as error:
        assert str(error)


@given(st.sets(st.integers(1, 99), min_size=1))
def test_layer_numbers_read_back(numbers: set[int]) -> None:
    assert set(layer_numbers("+".join(map(str, numbers)))) == numbers
