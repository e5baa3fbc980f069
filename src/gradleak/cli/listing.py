"""What there is to choose from: assets, models, attacks and recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from gradleak.core import assets

if TYPE_CHECKING:
    from gradleak.attacks.base import Attack


def print_assets() -> None:
    table = Table()
    for heading in ("asset", "what", "licence", "size", "cached", "sources"):
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for asset in assets.ASSETS.values():
        table.add_row(
            asset.name,
            asset.summary,
            asset.licence,
            f"{asset.size / 1e6:.0f} MB",
            "yes" if assets.is_cached(asset) else "no",
            "\n".join(str(source) for source in asset.sources),
        )
    console = Console()
    console.print(table)
    console.print(f"cache: {assets.cache_folder()}", style="dim", highlight=False)


def print_models() -> None:
    from gradleak.models.families import FAMILIES
    from gradleak.models.load import BUILT_IN

    built_in = Table(title="Built in", title_justify="left")
    for heading in ("name", "default task", "what"):
        built_in.add_column(heading)
    for name, model in BUILT_IN.items():
        built_in.add_row(name, model.task, model.summary)
    families = Table(title="Families: any Hugging Face folder or hub id of these", title_justify="left")
    for heading in ("family", "kind", "tasks"):
        families.add_column(heading)
    for family in map(FAMILIES.get, FAMILIES.names()):
        families.add_row(family.name, family.kind, ", ".join(family.tasks))
    console = Console()
    console.print(built_in)
    console.print(families)


def print_attacks() -> None:
    from gradleak.attacks import ATTACKS, IMAGE_ATTACKS

    console = Console()
    for name in ATTACKS.names():
        _print_attack(console, name, ATTACKS.get(name))
    console.print("\nOn image models:\n", style="bold")
    for name in IMAGE_ATTACKS.names():
        _print_attack(console, name, IMAGE_ATTACKS.get(name))


def _print_attack(console: Console, name: str, kind: type[Attack]) -> None:
    table = Table(title=f"[bold]{name}[/]: {kind.summary}", title_justify="left", title_style="")
    for heading in ("option", "default", "what it does"):
        table.add_column(heading)
    defaults = kind.Options()
    for key, field in kind.Options.model_fields.items():
        table.add_row(key, str(getattr(defaults, key)), field.description or "")
    if kind.Options.model_fields:
        console.print(table)
    else:
        console.print(f"[bold]{name}[/]: {kind.summary}")


def print_defenses() -> None:
    from gradleak.defenses import DEFENSES

    console = Console()
    for name in DEFENSES.names():
        kind = DEFENSES.get(name)
        table = Table(title=f"[bold]{name}[/]: {kind.summary}", title_justify="left", title_style="")
        for heading in ("value", "default", "what it is"):
            table.add_column(heading)
        for key, field in kind.model_fields.items():
            default = "must be said" if field.is_required() else "" if field.default is None else str(field.default)
            table.add_row(key, default, field.description or "")
        if kind.model_fields:
            console.print(table)
        else:
            console.print(f"[bold]{name}[/]: {kind.summary}")
        console.print(f"The attacker learns {kind.reveals}.\n", style="dim")


def print_recipes() -> None:
    from gradleak.experiments.recipes.recipe import load_recipe, recipe_names

    for name in recipe_names():
        print(f"{name}  {load_recipe(name).title}")
