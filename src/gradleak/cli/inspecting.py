"""The command that shows where a model keeps its parts: models inspect."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gradleak.cli.lists import models_app
from gradleak.cli.options import takes
from gradleak.core.errors import GradleakError
from gradleak.core.output import say


@models_app.command("inspect")
@takes("loading")
def inspect_model(
    given: dict[str, Any],
    model: Annotated[str, typer.Argument(help="Built-in name, Hugging Face folder or hub id.")],
    declaration: Annotated[
        bool, typer.Option("--declaration", help="Print the declaration as Python source to keep, and nothing else.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Show a model's parts: each role and its matrix, what is different, and what attacks have of it."""
    from gradleak.audits.run import load_target
    from gradleak.audits.spec import load_spec
    from gradleak.cli.listing import print_image_model, print_inspection
    from gradleak.models.discovery.declaration import source_of
    from gradleak.models.discovery.inspection import inspected
    from gradleak.models.text import TextModel

    if declaration and as_json:
        raise GradleakError("give either --declaration or --json")
    spec = load_spec(None, {**given, "model": model})
    target = load_target(spec)
    if not isinstance(target, TextModel):
        if declaration or as_json:
            raise GradleakError(f"{target.name} reads {target.examples}; declarations are of text models")
        print_image_model(target)
        return
    if declaration:
        say(*source_of(target.adapter.family).rstrip("\n").split("\n"))
        return
    seen = inspected(target, own=spec.family is not None)
    seen = seen.model_copy(update={"attacks": _lacking(target)})
    if as_json:
        say(*seen.model_dump_json(indent=2).split("\n"))
    else:
        print_inspection(seen)


def _lacking(model: Any) -> dict[str, str]:
    """For every attack on text why it does not run on the model; an empty text if it does."""
    from gradleak.attacks import ATTACKS

    lacking = {}
    for name, kind in ATTACKS.entries():
        try:
            if isinstance(kind, GradleakError):
                raise kind
            kind.from_settings({}).prepared(model)
            lacking[name] = ""
        except GradleakError as error:
            lacking[name] = str(error)
    return lacking
