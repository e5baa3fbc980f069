"""The tables that benches put into pages."""

import pytest

from gradleak import GradleakError
from gradleak.bench.pages import END, fill_page, place_of


def test_a_page_keeps_the_rest_and_is_filled_again(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{place_of('a bench')}\nold\n{END}\nafter\n")
    fill_page(page, "a bench", "| new |")
    first = page.read_text()
    fill_page(page, "a bench", "| new |")
    assert page.read_text() == first == f"before\n{place_of('a bench')}\n\n| new |\n\n{END}\nafter\n"


def test_a_page_without_a_place_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"{place_of('another bench')}\n{END}")
    with pytest.raises(GradleakError, match="no place for the table"):
        fill_page(page, "a bench", "| new |")
