"""Errors of one line."""

from gradleak import GradleakError


def test_errors_are_one_line():
    assert str(GradleakError("a\n  b")) == "a b"
