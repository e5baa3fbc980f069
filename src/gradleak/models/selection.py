"""Which parameters of a model a text such as `layers:3-8.key,value` means.

They are found by what they do, through the adapter and by identity, never by a piece of a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest
from gradleak.models.adapter import Part
from gradleak.models.base import Target
from gradleak.models.families import known_roles
from gradleak.models.text import TextModel

ALL = "all"
FORMS = "all, transformer, layer:6, layer:6.query, layers:3-8.key,value, head, embeddings or regex:PATTERN"
# The letters of the partial-gradients paper.
LETTERS = {"q": "query", "k": "key", "v": "value", "o": "attention_out", "f": "ffn_in", "p": "ffn_out"}


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


def selected(text: str, model: TextModel) -> list[str]:
    """The names of the trainable parameters a selection means, in the model's order.

    >>> from gradleak import load_model
    >>> selected("layer:6.query", load_model("minilm"))
    ['bert.encoder.layer.5.attention.self.query.weight']
    """
    chosen = {name for piece in parse_selection(text) for name in _names(piece, model)}
    names = [name for name in model.parameters() if name in chosen]
    if not names:
        raise GradleakError(f"{text!r} selects nothing that {model.name} trains; {existing(model)}")
    return names


def existing(model: TextModel) -> str:
    """What there is to select, in words."""
    roles = ", ".join(model.adapter.parts[0])
    example = next(iter(model.parameters()))
    return (
        f"there are all, transformer, layers 1 to {len(model.adapter.layers)} (in each: {roles}), head, embeddings, "
        f"and regex:PATTERN over names such as {example}"
    )


def count_parameters(names: Iterable[str], model: Target) -> int:
    """How many numbers these parameters hold."""
    parameters = model.parameters()
    return sum(parameters[name].numel() for name in names)


def share_of(names: Iterable[str], model: Target) -> float:
    """The same in percent of all that is trained."""
    return 100 * count_parameters(names, model) / count_parameters(model.parameters(), model)


def layer_numbers(text: str) -> tuple[int, ...]:
    """The numbers a text such as `1+4-6` means.

    >>> layer_numbers("1+4-6")
    (1, 4, 5, 6)
    """
    found: set[int] = set()
    for piece in text.split("+"):
        first, _, last = piece.strip().partition("-")
        last = last or first
        numbers = all(number.isdecimal() and len(number) <= 3 for number in (first, last))
        if not (numbers and 1 <= int(first) <= int(last)):
            raise GradleakError(f"{text!r} is not a choice of layers such as 3, 4-6 or 1+4-6; the first layer is 1")
        found |= set(range(int(first), int(last) + 1))
    return tuple(sorted(found))


def fused_with(parts: dict[str, Part], role: str) -> tuple[str, ...]:
    """The roles of a layer that live in one matrix with this one, itself included, in the layer's order."""
    return tuple(other for other, part in parts.items() if part.module is parts[role].module)


# --- reading ----------------------------------------------------------------------------------------


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
    known = known_roles()
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


# --- finding ----------------------------------------------------------------------------------------


def _names(piece: Piece, model: TextModel) -> list[str]:
    adapter = model.adapter
    if piece.kind == "all":
        return list(model.parameters())
    if piece.kind == "regex":
        return [name for name in model.parameters() if re.search(piece.pattern, name)]
    if piece.kind == "head":
        return _inside(adapter.head, model)
    if piece.kind == "embeddings":
        tables = (adapter.words, adapter.positions, adapter.token_types, adapter.embedding_norm)
        return _inside([table for table in tables if table is not None], model)
    if piece.kind == "transformer":
        return _inside(adapter.layers, model)
    if max(piece.numbers) > len(adapter.layers):
        raise GradleakError(f"{model.name} has layers 1 to {len(adapter.layers)}, not {max(piece.numbers)}")
    if not piece.roles:
        return _inside([adapter.layers[number - 1] for number in piece.numbers], model)
    return [name for number in piece.numbers for name in _weights(number, piece.roles, model)]


def _inside(modules: Sequence[nn.Module], model: TextModel) -> list[str]:
    """All that is trained inside the modules; a tied matrix is inside all of its owners."""
    owned = {id(parameter) for module in modules for parameter in module.parameters()}
    return [name for name, parameter in model.parameters().items() if id(parameter) in owned]


def _weights(number: int, roles: Sequence[str], model: TextModel) -> list[str]:
    """The weight matrices of some roles of one layer, or LoRA's factors in their place."""
    parts = model.adapter.parts[number - 1]
    for role in roles:
        if role not in parts:
            raise GradleakError(f"{model.name} has no {role}; {existing(model)}")
        together = fused_with(parts, role)
        if not set(together) <= set(roles):
            raise GradleakError(
                f"{', '.join(together)} of {model.name} are one matrix ({parts[role].weight_name}), which is sent "
                f"whole or not at all; select layer:{number}.{','.join(together)}"
            )
    return [name for role in roles for name in parts[role].tensor_names]
