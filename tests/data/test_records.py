"""Instruction and chat data: which columns make a record, and what of a hostile file is refused, in one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak import GradleakError
from gradleak.data.records import ROLES, Record, Turn, record_of
from gradleak.data.texts import read_data

TURNS = [{"role": "user", "content": "Who paid?"}, {"role": "assistant", "content": "Rosa."}]
SHARED = [{"from": "human", "value": "Who paid?"}, {"from": "gpt", "value": "Rosa."}]


def lines(path: Path, *entries: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, entries)))
    return path


@pytest.mark.parametrize(
    ("entry", "usual"),
    [
        ({"messages": TURNS}, "chat"),
        ({"conversations": SHARED, "id": 7}, "chat"),
        ({"prompt": TURNS[:1], "completion": TURNS[1:]}, "chat"),
        ({"prompt": "Who paid?", "completion": "Rosa."}, "none"),
        ({"instruction": "Who paid?", "input": "", "output": "Rosa."}, "alpaca"),
    ],
)
def test_every_form_gives_the_same_turns(entry: dict[str, Any], usual: str, tmp_path: Path) -> None:
    (row,) = read_data(lines(tmp_path / "data.jsonl", entry))
    assert row.record is not None
    assert [(turn.role, turn.content) for turn in row.record.turns] == [("user", "Who paid?"), ("assistant", "Rosa.")]
    assert row.record.usual == usual
    assert row.completions is not None
    assert [row.text[first:last] for first, last in row.completions] == ["Rosa."]


def test_an_input_belongs_to_the_question(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows(
            [["instruction", "input", "output"], ["Who paid?", "Rosa, Ada", "Ada"], ["", "", ""]]
        )
    (row,) = read_data(path)
    assert row.record is not None
    assert row.record.turns[0] == Turn("user", "Who paid?\nRosa, Ada", "Who paid?", "Rosa, Ada")
    assert row.record.turns[0].message()["input"] == "Rosa, Ada"


def test_a_text_column_comes_first_and_a_conversation_can_be_asked_for(tmp_path: Path) -> None:
    path = lines(tmp_path / "data.jsonl", {"text": "As it is.", "chat": TURNS, "messages": TURNS})
    assert read_data(path)[0].record is None
    assert read_data(path, "chat")[0].record is not None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"messages": "Who paid?"}, "not a list of turns"),
        ({"messages": ["Who paid?"]}, "not a table"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "is no role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "is no role"),
        ({"messages": [{"role": "user", "content": None}]}, "not a text"),
        ({"messages": [{"role": "user"}]}, "not a text"),
        ({"prompt": TURNS, "completion": "x"}, "not a list of turns"),
        ({"prompt": 3, "completion": "x"}, "not a text"),
        ({"instruction": "x", "output": "y", "input": ["z"]}, "not a text"),
    ],
)
def test_what_is_no_record_is_an_error_of_one_line(entry: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match=message) as error:
        read_data(lines(tmp_path / "data.jsonl", entry))
    assert "line 1" in str(error.value)
    assert "\n" not in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "from"]), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["messages", "prompt", "completion", "instruction", "output", "input"]), JSON))
def test_any_values_give_a_record_or_an_error(entry: dict[str, Any]) -> None:
    known = "messages" in entry or {"prompt", "completion"} <= set(entry) or {"instruction", "output"} <= set(entry)
    if not known:
        return
    try:
        found = record_of(entry, "line 1")
    except GradleakError as error:
        assert "\n" not in str(error)
    else:
        assert found is None or found.turns


@given(
    st.lists(st.tuples(st.sampled_from(sorted(set(ROLES.values()))), st.text(max_size=9)), min_size=1, max_size=6),
    st.sampled_from(["chat", "alpaca", "none"]),
)
def test_completions_are_the_assistants_turns(turns: list[tuple[str, str]], usual: Any) -> None:
    text, places = Record(tuple(Turn(*turn) for turn in turns), usual).joined()
    assert [text[a:b] for a, b in places] == [content for role, content in turns if role == "assistant"]
