"""What there is to choose from: assets, models, clients, attacks, defences, metrics and recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from gradleak.core import assets
from gradleak.core.asset_list import ASSETS
from gradleak.core.console import SafeConsole
from gradleak.core.errors import GradleakError
from gradleak.core.output import say
from gradleak.core.registry import Registry


def print_assets() -> None:
    table = Table()
    for heading in ("asset", "what", "licence", "size", "cached", "sources"):
        table.add_column(heading, justify="right" if heading == "size" else "left")
    for asset in ASSETS.values():
        table.add_row(
            asset.name,
            asset.summary,
            asset.licence,
            f"{asset.size / 1e6:.0f} MB",
            "yes" if assets.is_cached(asset) else "no",
            "\n".join(str(source) for source in asset.sources),
        )
    console = SafeConsole()
    console.print(table)
    console.print(f"cache: {assets.cache_folder()}", style="dim")


def print_models() -> None:
    from gradleak.models.families import FAMILIES, Family
    from gradleak.models.load import BUILT_IN

    built_in = _table("Built in", "name", "default task", "what")
    for name, model in BUILT_IN.items():
        built_in.add_row(name, model.task, model.summary)
    families = _table("Families: any Hugging Face folder or hub id of these", "family", "kind", "tasks")

    def add(name: str, family: Family) -> None:
        families.add_row(name, family.kind, ", ".join(family.tasks))

    broken = _for_each(FAMILIES, add)
    _print(built_in, families, *broken)


def print_attacks() -> None:
    from gradleak.attacks import ATTACKS, IMAGE_ATTACKS

    _print(*_all(ATTACKS, lambda name, kind: [_settings(name, kind.summary, kind.Options)]))
    _print(Text("\nOn image models:\n", style="bold"))
    _print(*_all(IMAGE_ATTACKS, lambda name, kind: [_settings(name, kind.summary, kind.Options)]))


def print_defenses() -> None:
    from gradleak.defenses import DEFENSES
    from gradleak.defenses.base import Defense

    def shown(name: str, kind: type[Defense]) -> list[Table | Text]:
        return [_settings(name, kind.summary, kind), Text(f"The attacker learns {kind.reveals}.\n", style="dim")]

    _print(*_all(DEFENSES, shown))


def print_clients() -> None:
    from gradleak.core.client_presets import PRESETS
    from gradleak.models.lora_text import LoraSettings
    from gradleak.updates.client_rule import ClientRule

    rules = "fedsgd sends a gradient; fedavg (SGD), adam and adamw take local steps and send weights"
    presets = [Text("Clients as projects configure them: --client NAME, and --lora NAME for adapters\n")]
    for name, preset in PRESETS.items():
        settings = f"  --client {ClientRule.parse(name)}"
        adapters = f"\n  --lora {LoraSettings.parse(name)}" if preset.lora else ""
        presets.append(Text.assemble((name, "bold"), f": {preset.source}\n{settings}{adapters}\n"))
    _print(_settings("--client", rules, ClientRule), _settings("--lora", "fresh adapters", LoraSettings), *presets)


def print_metrics() -> None:
    from gradleak.scoring.metric import Metric
    from gradleak.scoring.metrics import METRICS, in_order

    table = _table("", "name", "label", "compares", "what it counts", "range", "closer is", "measured")

    rows: dict[str, list[str]] = {}

    def add(name: str, metric: Metric) -> None:
        closer = "higher" if metric.higher_is_closer else "lower"
        measured = "with --metrics" if metric.optional else "always"
        size = f"{metric.low:g} to {metric.high:g}"
        rows[name] = [name, metric.label, metric.modality, metric.counts, size, closer, measured]

    broken = _for_each(METRICS, add)
    for name in in_order(rows):
        table.add_row(*rows[name])
    _print(table, *broken)


def print_recipes() -> None:
    from gradleak.experiments.recipes.recipe import load_recipe, recipe_names

    for name in recipe_names():
        say(f"{name}  {load_recipe(name).title}")


def _all(registry: Registry[Any], make: Callable[[str, Any], list[Table | Text]]) -> list[Table | Text]:
    """What is to be printed of every entry, then what is broken."""
    parts: list[Table | Text] = []
    broken = _for_each(registry, lambda name, kind: parts.extend(make(name, kind)))
    return [*parts, *broken]


def _for_each(registry: Registry[Any], show: Callable[[str, Any], None]) -> list[Text]:
    """Show every entry; what another package has broken gets a line each and stops no list."""
    broken = []
    for name, entry in registry.entries():
        try:
            if isinstance(entry, GradleakError):
                raise entry
            show(name, entry)
        except Exception as error:  # whatever goes wrong in another's class
            broken.append(Text(f"{name}: {' '.join(str(error).split())}", style="red"))
    return broken


def _settings(name: str, summary: str, settings: type[BaseModel]) -> Table | Text:
    """A name, what it does, and the values that can be set."""
    title = Text.assemble((name, "bold"), f": {summary}")
    if not settings.model_fields:
        return title
    table = _table(title, "option", "default", "what it is")
    for key, field in settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = "required" if field.is_required() else "" if default is None else str(default)
        table.add_row(key, shown, field.description or "")
    return table


def _table(title: str | Text, *headings: str) -> Table:
    table = Table(title=title or None, title_justify="left", title_style="")
    for heading in headings:
        table.add_column(heading)
    return table


def _print(*parts: Table | Text) -> None:
    console = SafeConsole()
    for part in parts:
        console.print(part)
