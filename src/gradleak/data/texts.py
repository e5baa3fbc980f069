"""Reading texts and labels: the built-in corpus, or the user's .txt, .csv, .tsv and .jsonl files."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from gradleak.core.errors import GradleakError
from gradleak.core.privacy import private
from gradleak.core.registry import suggest
from gradleak.data.records import Completions, Record, is_record, record_of

BUILT_IN = "builtin"
KINDS = (".txt", ".csv", ".tsv", ".jsonl")
_TEXT_NAMES = ("text", "sentence", "content", "review", "tokens", "words", "source")
_LABEL_NAMES = ("label", "labels", "target", "class", "ner_tags")
_DECIMAL = re.compile(r"-?\d{1,300}\.\d{1,300}([eE][+-]?\d{1,2})?", re.ASCII)


@dataclass(frozen=True)
class Row:
    """One example. `label` is a class number or a class name, a number, or several of them; None without labels.

    An instruction or a conversation is a `record` too, from which `data.chat` makes the text that a model is trained
    on. `completions` are the places of its answers in the text; None where the text does not say.
    """

    text: str
    label: int | float | str | tuple[int | float | str, ...] | None = None
    record: Record | None = None
    completions: Completions | None = None

    @classmethod
    def of(cls, record: Record, label: int | float | str | tuple[int | float | str, ...] | None = None) -> Row:
        text, completions = record.joined()
        return cls(text, label, record, completions)


def read_data(
    source: str | Path = BUILT_IN,
    text_column: str | None = None,
    label_column: str | None = None,
) -> list[Row]:
    """Rows of a data file, or of the built-in corpus for "builtin".

    Columns are given by name or by 1-based number. A .csv or .tsv file is taken to have a header line
    unless columns are given by number and the first line does not look like one. Empty texts are skipped.
    Where no column holds the text, the columns of instruction data make it: `instruction` and `output`, `prompt` and
    `completion`, `messages` or `conversations`.

    >>> rows = read_data()
    >>> len(rows), rows[0].label in (0, 1)
    (216, True)
    """
    if str(source) == BUILT_IN:
        return _built_in()
    path = Path(source)
    try:
        if not path.is_file():
            raise GradleakError(f"no data file at {path}")
        rows = list(_read(path, text_column, label_column))
        for row in rows:
            f"{row.text}{row.label}".encode()  # JSON can hold halves of characters, which no model can read
    except UnicodeError as error:
        raise GradleakError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise GradleakError(f"cannot read {path}: {error.strerror}") from error
    if not rows:
        raise GradleakError(f"{path} holds no texts")
    return rows


def _built_in() -> list[Row]:
    text = resources.files("gradleak.data").joinpath("corpus.jsonl").read_text(encoding="utf-8")
    return [Row(entry["text"], entry["label"]) for entry in map(json.loads, text.splitlines())]


def _read(path: Path, text_column: str | None, label_column: str | None) -> Iterator[Row]:
    kind = path.suffix.lower()
    if kind == ".txt":
        if text_column or label_column:
            raise GradleakError(f"{path} is plain text, one example per line: it has no columns")
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        return (Row(line.strip()) for line in lines if line.strip())
    if kind in (".csv", ".tsv"):
        return _tabular(path, "," if kind == ".csv" else "\t", text_column, label_column)
    if kind == ".jsonl":
        return _json_lines(path, text_column, label_column)
    raise GradleakError(f"{path}: unknown kind of file {kind!r}; known: {', '.join(KINDS)}")


def _tabular(path: Path, delimiter: str, text_column: str | None, label_column: str | None) -> Iterator[Row]:
    # Tab-separated corpora are rarely quoted, and an unbalanced quote would swallow the lines after it.
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if delimiter == "," else csv.QUOTE_NONE
    csv.field_size_limit(1 << 24)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        try:
            table = [row for row in csv.reader(stream, delimiter=delimiter, quoting=quoting) if row]
        except csv.Error as error:
            raise GradleakError(f"{path} is not a well-formed table: {error}") from error
    if not table:
        return
    first = table[0]
    if _by_record(first, text_column):
        yield from _records(path, table, label_column)
        return
    text_at = _column(path, first, text_column, _TEXT_NAMES, required=True)
    label_at = _column(path, first, label_column, _LABEL_NAMES, required=False)
    assert text_at is not None
    start = 1 if _is_header(first, text_column, label_column, text_at, label_at) else 0
    for number, row in enumerate(table[start:], start=start + 1):
        needed = max(text_at, label_at if label_at is not None else 0)
        if needed >= len(row):
            raise GradleakError(f"{path}: row {number} has {len(row)} columns, column {needed + 1} was asked for")
        if row[text_at].strip():
            label = None if label_at is None else _label(row[label_at], f"{path}: row {number}")
            yield Row(row[text_at].strip(), label)


def _by_record(columns: Sequence[str], text_column: str | None) -> bool:
    """Whether a row is read as a record: no column was asked for, and none is a text's usual one."""
    names = [name.strip() for name in columns]
    return text_column is None and not set(_TEXT_NAMES) & {name.lower() for name in names} and is_record(names)


def _records(path: Path, table: Sequence[Sequence[str]], label_column: str | None) -> Iterator[Row]:
    """Rows of a table with columns such as `instruction` and `output`."""
    names = [name.strip() for name in table[0]]
    label_at = _column(path, names, label_column, _LABEL_NAMES, required=False)
    for number, row in enumerate(table[1:], start=2):
        if len(row) != len(names):
            raise GradleakError(f"{path}: row {number} has {len(row)} columns, the header has {len(names)}")
        record = record_of(dict(zip(names, row, strict=True)), f"{path}: row {number}")
        if record is not None:
            yield Row.of(record, None if label_at is None else _label(row[label_at], f"{path}: row {number}"))


def _column(
    path: Path, first: Sequence[str], wanted: str | None, usual: Sequence[str], *, required: bool
) -> int | None:
    """The 0-based index of a column given by name or 1-based number, or by its usual names."""
    names = [name.strip() for name in first]
    if wanted is None:
        lowered = [name.lower() for name in names]
        index = next((lowered.index(name) for name in usual if name in lowered), None)
        if index is None and required:
            if len(names) == 1:
                return 0
            raise GradleakError(
                f"{path}: which column holds the text? Give --text-column NAME or NUMBER (1 to {len(names)})"
            )
        return index
    if wanted in names:
        return names.index(wanted)
    if _is_number(wanted):
        if 1 <= int(wanted) <= len(names):
            return int(wanted) - 1
        raise GradleakError(f"{path}: there is no column {wanted}; the file has {len(names)}")
    raise GradleakError(f"{path}: there is no column {wanted!r}; {private(suggest(wanted, names))}")


def _is_header(
    first: Sequence[str],
    text_column: str | None,
    label_column: str | None,
    text_at: int,
    label_at: int | None,
) -> bool:
    """A first line is a header if it names a column that was asked for, or reads like a header."""
    names = [name.strip() for name in first]
    asked = [column for column in (text_column, label_column) if column is not None]
    if any(column in names for column in asked) or (text_column is None and len(names) > 1):
        return True
    if names[text_at].lower() in _TEXT_NAMES:
        return True
    return label_at is not None and names[label_at].lower() in _LABEL_NAMES


def _json_lines(path: Path, text_column: str | None, label_column: str | None) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise GradleakError(f"{path}: line {number} is not JSON") from error
            if not isinstance(entry, dict):
                raise GradleakError(f"{path}: line {number} is not a JSON object")
            keys, place = list(entry), f"{path}: line {number}"
            asked = text_column if _is_conversation(entry.get(text_column or "")) else None
            if asked is not None or _by_record(keys, text_column):
                label_at = _column(path, keys, label_column, _LABEL_NAMES, required=False)
                record = record_of(entry, place, asked)
                if record is not None:
                    yield Row.of(record, None if label_at is None else _label(entry[keys[label_at]], place))
                continue
            text_at = _column(path, keys, text_column, _TEXT_NAMES, required=True)
            label_at = _column(path, keys, label_column, _LABEL_NAMES, required=False)
            assert text_at is not None
            text = _joined(entry[keys[text_at]])
            if text is None:
                raise GradleakError(f"{place}: {private(repr(keys[text_at]))} is not a text")
            if text.strip():
                label = None if label_at is None else _label(entry[keys[label_at]], place)
                yield Row(text.strip(), label)


def _is_conversation(value: object) -> bool:
    """Whether a value that was asked for by its column is a list of turns, not one of words."""
    return isinstance(value, list) and any(isinstance(turn, dict) for turn in value)


def _joined(value: object) -> str | None:
    """A text, or a list of words with blanks between them; None if it is neither."""
    if isinstance(value, list) and all(isinstance(word, str) and word.split() == [word] for word in value):
        return " ".join(value)
    return value if isinstance(value, str) else None


def _label(value: object, place: str) -> int | float | str | tuple[int | float | str, ...]:
    """Numbers as numbers, lists as several labels, anything else as the name of a class."""
    if isinstance(value, list):
        return tuple(_single(each, place) for each in value)
    return _single(value, place)


def _single(value: object, place: str) -> int | float | str:
    if isinstance(value, float) and math.isfinite(value):
        return value
    text = "" if value is None else str(value).strip()
    if not text:
        raise GradleakError(f"{place} has a text and no label: fill it in, or take the row out")
    if _DECIMAL.fullmatch(text):
        return float(text)
    return int(text) if _is_number(text.removeprefix("-")) else text


def _is_number(text: str) -> bool:
    """Whether a text is a number that can count classes or columns, not digits of another script or without end."""
    return text.isascii() and text.isdigit() and len(text) <= 18
