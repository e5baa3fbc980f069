"""The language of selections, such as `layers:3-8.key,value`. Loads without torch, for quick checks of settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest
from gradleak.models.families import known_roles

ALL = "all"
FORMS = "all, transformer, layer:6, layer:6.query, layers:3-8.key,value, head, embeddings or regex:PATTERN"
# The letters of the partial-gradients paper.
LETTERS = {"q": "query", "k": "key", "v": "value", "o": "attention_out", "f": "ffn_in", "p": "ffn_out"}
# The parameters of a module of an image model.
IMAGE_ROLES = ("weight", "bias")


@dataclass(frozen=True)
class Piece:
    """One kind of parameters: `numbers` and `roles` belong to layers, which are meant whole without roles."""

    kind: Literal["all", "transformer", "head", "embeddings", "layers", "regex"]
    numbers: tuple[int, ...] = ()
    roles: tuple[str, ...] = ()
    pattern: str = ""


def parse_selection(text: str) -> tuple[Piece, ...]:
    """The pieces of a selection; a plus before a letter joins two of them, one before a digit two layers.

    >>> [(piece.kind, piece.numbers, piece.roles) for piece in parse_selection("layers:1+3-4.q,value+head")]
    [('layers', (1, 3, 4), ('query', 'value')), ('head', (), ())]
    """
    if text.strip().startswith("regex:"):  # a pattern may hold any sign, so it stands alone
        return (_pattern(text.strip().removeprefix("regex:")),)
    return tuple(_piece(part.strip(), text) for part in re.split(r"\+(?=\s*[A-Za-z])", text))


def layer_numbers(text: str) -> tuple[int, ...]:
    """The numbers a text such as `1+4-6` means.

    >>> layer_numbers("1+4-6")
    (1, 4, 5, 6)
    """
    chosen: set[int] = set()
    for piece in text.split("+"):
        first, _, last = piece.strip().partition("-")
        last = last or first
        numbers = all(number.isdecimal() and len(number) <= 3 for number in (first, last))
        if not (numbers and 1 <= int(first) <= int(last)):
            raise GradleakError(f"{text!r} is not a choice of layers such as 3, 4-6 or 1+4-6; the first layer is 1")
        chosen |= set(range(int(first), int(last) + 1))
    return tuple(sorted(chosen))


def _piece(part: str, text: str) -> Piece:
    kind, colon, rest = part.partition(":")
    if colon and kind in ("layer", "layers"):
        numbers, dot, roles = rest.partition(".")
        return Piece("layers", layer_numbers(numbers), _roles(roles) if dot else ())
    if not colon and kind in ("all", "transformer", "head", "embeddings"):
        return Piece(kind)  # type: ignore[arg-type] # one of the words just listed
    if kind == "regex":
        raise GradleakError(f"{text!r}: a regex stands alone; join inside the pattern instead, as in regex:a|b")
    raise GradleakError(f"{part!r} is not a selection; write {FORMS}, and join several by +")


def _roles(text: str) -> tuple[str, ...]:
    roles = [LETTERS.get(role.strip(), role.strip()) for role in text.split(",")]
    known = [*known_roles(), *IMAGE_ROLES]
    for role in roles:
        if role not in known:
            raise GradleakError(f"{role!r} is no module of a layer; {suggest(role, known)}")
    return tuple(dict.fromkeys(roles))


def _pattern(text: str) -> Piece:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise GradleakError(f"regex:{text} is not a regular expression: {error}") from error
    return Piece("regex", pattern=text)
