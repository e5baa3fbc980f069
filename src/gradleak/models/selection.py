"""Which parameters of a model a text such as `layers:3-8.key,value` means.

They are found by what they do, by the identity of modules, never by a piece of a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest
from gradleak.models.base import Target, fused_with
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


def selected(text: str, model: Target) -> list[str]:
    """The names of the trainable parameters a selection means, in the model's order.

    >>> from gradleak import load_model
    >>> selected("layer:6.query", load_model("minilm"))
    ['bert.encoder.layer.5.attention.self.query.weight']
    >>> selected("layer:1.weight+head", load_model("lenet"))
    ['body.0.weight', 'head.weight', 'head.bias']
    """
    chosen = {name for piece in parse_selection(text) for name in _names(piece, model)}
    names = [name for name in model.parameters() if name in chosen]
    if not names:
        raise GradleakError(f"{text!r} selects nothing that {model.name} trains; {existing(model)}")
    return names


def existing(model: Target) -> str:
    """What there is to select, in words."""
    roles = ", ".join(model.layer_tensors(1))
    example = next(iter(model.parameters()))
    return (
        f"there are {', '.join([ALL, *model.sections])}, layers 1 to {model.layer_count} (in each: {roles}), "
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


# --- finding ----------------------------------------------------------------------------------------


def _names(piece: Piece, model: Target) -> list[str]:
    if piece.kind == "all":
        return list(model.parameters())
    if piece.kind == "regex":
        return [name for name in model.parameters() if re.search(piece.pattern, name)]
    if piece.kind != "layers":
        if piece.kind not in model.sections:
            raise GradleakError(f"{model.name} has no {piece.kind}; {existing(model)}")
        return model.parameters_in(model.sections[piece.kind])
    if max(piece.numbers) > model.layer_count:
        raise GradleakError(f"{model.name} has layers 1 to {model.layer_count}, not {max(piece.numbers)}")
    return [
        name
        for number in piece.numbers
        for name in (_tensors(number, piece.roles, model) if piece.roles else model.layer_parameters(number))
    ]


def _tensors(number: int, roles: Sequence[str], model: Target) -> list[str]:
    """The tensors of some roles of one layer."""
    tensors = model.layer_tensors(number)
    for role in roles:
        if role not in tensors:
            raise GradleakError(f"{model.name} has no {role} in layer {number}; {existing(model)}")
        together = fused_with(tensors, role)
        if not set(together) <= set(roles):
            raise GradleakError(
                f"{', '.join(together)} of {model.name} are one matrix ({tensors[role][0]}), which is sent "
                f"whole or not at all; select layer:{number}.{','.join(together)}"
            )
    return [name for role in roles for name in tensors[role]]
