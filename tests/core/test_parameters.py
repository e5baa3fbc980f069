"""Texts that name a thing and set its values."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from gradleak import GradleakError
from gradleak.core.parameters import split_parameters, validated

words = st.text(string.ascii_letters + string.digits + "_.-", min_size=1)
values = st.dictionaries(words, st.text(string.ascii_letters + string.digits + "_.-+/=:", min_size=1), max_size=4)


@given(words, st.none() | words, values)
def test_what_was_written_is_read(name, attribute, chosen):
    if attribute is not None:
        name = f"{name}:{attribute}"
    pairs = ",".join(f"{key}={value}" for key, value in chosen.items())
    for text in {f"{name}:{pairs}", f"{name}:{pairs}" if pairs else name, f" {name} : {pairs.replace(',', ' , ')} "}:
        assert split_parameters(text) == (name, chosen)


@given(st.text())
def test_any_text_is_read_or_refused_in_a_line(text):
    try:
        name, chosen = split_parameters(text)
    except GradleakError:
        return
    assert name.count(":") <= 1
    assert all(key and "=" not in key for key in chosen)


@pytest.mark.parametrize("text", ["a:b:c", "a:b=1,c", "a:=1", "a:b,c=1", "a:b:c=1,d"])
def test_values_without_a_key(text):
    with pytest.raises(GradleakError, match="is not of the form key=value"):
        split_parameters(text)


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    digits: int
    base: int = 10


def test_a_misspelt_value_comes_before_a_missing_one():
    assert validated(Options, {"digits": "2"}, "thing") == Options(digits=2)
    with pytest.raises(GradleakError, match="thing: unknown key 'digit'; did you mean 'digits'"):
        validated(Options, {"digit": "2"}, "thing")
    with pytest.raises(GradleakError, match="thing: digits: "):
        validated(Options, {"digits": "two"}, "thing")
