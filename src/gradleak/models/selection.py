"""Which parameters of a model a selection means.

Parameters are identified by the modules that own them, never by a piece of a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gradleak.core.errors import GradleakError
from gradleak.models.base import Target, fused_with
from gradleak.models.selection_text import ALL, Piece, parse_selection


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
    """How many percent of all that is trained these parameters are."""
    return 100 * count_parameters(names, model) / count_parameters(model.parameters(), model)


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
