"""What there is to choose from: assets, models, clients, attacks, defences, metrics and recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from gradleak.core import assets
from gradleak.core.asset_list import ASSETS
from gradleak.core.console import SafeConsole
from gradleak.core.errors import GradleakError
from gradleak.core.output import say
from gradleak.core.registry import Registry

if TYPE_CHECKING:
    from gradleak.models.discovery.inspection import Inspection


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


def print_inspection(seen: Inspection) -> None:
    """A text model's parts, what is different about it, and what attacks have of it."""
    declared = {"listed": "a listed family", "found": "found by structure", "own": "your declaration"}[seen.declared]
    facts = _table(Text.assemble((seen.model, "bold"), f": {seen.family} ({declared})"), "what", "is")
    facts.add_row("kind", seen.kind)
    facts.add_row("task", f"{seen.task} (also: {', '.join(t for t in seen.tasks if t != seen.task) or 'none'})")
    facts.add_row("size", f"{seen.layers} layers, width {seen.width:,}, {seen.parameters:,} parameters")
    facts.add_row("texts", f"{seen.vocabulary:,} tokens in the vocabulary, at most {seen.longest:,} in a text")
    for names in seen.tied:
        facts.add_row("one matrix", " = ".join(names))
    if seen.adapters is not None:
        facts.add_row("adapters", seen.adapters)
    parts = _table("Parts", "part", "module", "shape", "of it")
    for name, place in (seen.parts | seen.roles).items():
        parts.add_row(name, place.path, " x ".join(map(str, place.shape)), place.rows or "")
    rules = _table("How gradients are read when matching", "modules", "by")
    for kind, rule in seen.rules.items():
        rules.add_row(kind, rule)
    attacks = _table("Attacks", "attack", "can run")
    for name, lacking in seen.attacks.items():
        attacks.add_row(name, lacking or "yes")
    said = [Text(f"- {line}") for line in (*seen.differences, *seen.notes)]
    _print(facts, parts, *([Text("What is different:"), *said] if said else []), rules, attacks)


def print_image_model(model: Any) -> None:
    """An image model's layers: nothing has to be declared for one."""
    table = _table(
        Text.assemble((model.name, "bold"), ": an image model, of which nothing is declared"), "tensor", "shape"
    )
    for name, parameter in model.parameters().items():
        table.add_row(name, " x ".join(map(str, parameter.shape)))
    _print(table)


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


def print_threats() -> None:
    from gradleak.audits.threats import THREATS

    table = _table("", "--threat", "who attacks", "the settings it stands for")
    for name, threat in THREATS.items():
        values = {key: ",".join(each) if isinstance(each, tuple) else each for key, each in threat.settings.items()}
        table.add_row(name, threat.who, "\n".join(f"{key}: {value or 'nothing'}" for key, value in values.items()))
    _print(table)


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
