"""Rows that are more than a text: an instruction with its answer, a prompt with its completion, or a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gradleak.core.errors import GradleakError
from gradleak.core.privacy import private

# The columns by which a record is known, those that must be there first.
CONVERSATIONS = ("messages", "conversations")
PAIRS: dict[tuple[str, str], Literal["alpaca", "none"]] = {
    ("instruction", "output"): "alpaca",
    ("prompt", "completion"): "none",
}
# Who speaks, under the names that data has for it.
ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant", "tool": "tool",
    "function": "tool",
}  # fmt: skip

# Where completions stand in a text: from which character to before which.
Completions = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Turn:
    """What one side says. `instruction` and `input` are the parts of an Alpaca-style question."""

    role: str
    content: str
    instruction: str = ""
    input: str = ""

    def message(self) -> dict[str, str]:
        """As chat templates take it."""
        parts = {"instruction": self.instruction, "input": self.input} if self.instruction else {}
        return {"role": self.role, "content": self.content, **parts}


@dataclass(frozen=True)
class Record:
    """The turns of a row, and how they become a text where nothing is said.

    "chat": by the tokenizer's own chat template; "alpaca": by that format; "none": joined as they are.
    """

    turns: tuple[Turn, ...]
    usual: Literal["chat", "alpaca", "none"]

    def joined(self) -> tuple[str, Completions]:
        """The turns without any template, and where those of the assistant stand.

        A prompt and its completion follow one another directly, other turns line after line.

        >>> Record((Turn("user", "Who?"), Turn("assistant", " Rosa.")), "none").joined()
        ('Who? Rosa.', ((4, 10),))
        """
        between, text, found = "" if self.usual == "none" else "\n", "", []
        for number, turn in enumerate(self.turns):
            text += between if number else ""
            if turn.role == "assistant":
                found.append((len(text), len(text) + len(turn.content)))
            text += turn.content
        return text, tuple(found)


def is_record(columns: Mapping[str, object] | list[str]) -> bool:
    """Whether columns of these names make a record."""
    names = set(columns)
    return any(name in names for name in CONVERSATIONS) or any(set(pair) <= names for pair in PAIRS)


def record_of(entry: Mapping[str, Any], place: str, column: str | None = None) -> Record | None:
    """The record of a row, None if it says nothing; `column` names the conversation where that was asked for."""
    for name in [column] if column is not None else CONVERSATIONS:
        if name in entry:
            return _conversation(entry[name], "chat", place)
    question, answer = next(pair for pair in PAIRS if set(pair) <= set(entry))
    usual = PAIRS[question, answer]
    if isinstance(entry[question], list) or isinstance(entry[answer], list):
        turns = [*_listed(entry[question], place, question), *_listed(entry[answer], place, answer)]
        return _conversation(turns, "chat", place)
    asked, answered = _text(entry[question], place, question), _text(entry[answer], place, answer)
    if not answered.strip() or not asked.strip():
        return None
    if usual == "none":
        return Record((Turn("user", asked), Turn("assistant", answered)), usual)
    more = _text(entry.get("input") or "", place, "input")
    before = _text(entry.get("system") or "", place, "system")
    system = (Turn("system", before),) if before.strip() else ()
    whole = f"{asked}\n{more}" if more.strip() else asked
    return Record((*system, Turn("user", whole, asked, more.strip()), Turn("assistant", answered)), usual)


def _conversation(value: object, usual: Literal["chat"], place: str) -> Record | None:
    turns = tuple(_turn(each, place) for each in _listed(value, place, "the conversation"))
    return Record(turns, usual) if any(turn.content.strip() for turn in turns) else None


def _turn(value: object, place: str) -> Turn:
    if not isinstance(value, Mapping):
        raise GradleakError(f"{place}: a turn is not a table with a role and a content")
    who = value.get("role", value.get("from"))
    role = ROLES.get(who.lower()) if isinstance(who, str) else None
    if role is None:
        raise GradleakError(f"{place}: {private(repr(who)[:60])} is no role; known: {', '.join(sorted(ROLES))}")
    return Turn(role, _text(value.get("content", value.get("value")), place, "a turn's content"))


def _listed(value: object, place: str, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise GradleakError(f"{place}: {name} is not a list of turns")
    return value


def _text(value: object, place: str, name: str) -> str:
    if not isinstance(value, str):
        raise GradleakError(f"{place}: {name} is not a text")
    return value
