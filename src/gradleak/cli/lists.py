"""Commands that list what there is, and the assets: attacks, defenses, clients, threats, metrics, models,
assets."""

from __future__ import annotations

from typing import Annotated

import typer

from gradleak.cli.app import app
from gradleak.cli.command import App
from gradleak.core.errors import GradleakError
from gradleak.core.output import say

assets_app = App("Pinned weights and corpora: list, fetch, locate.")
app.add_typer(assets_app, name="assets")
models_app = App("List the built-in models and the supported families, or show the parts of one model.", bare=True)
app.add_typer(models_app, name="models")


@app.command()
def attacks() -> None:
    """List the attacks with their options."""
    from gradleak.cli.listing import print_attacks

    print_attacks()


@app.command()
def defenses() -> None:
    """List the defences with their strengths and what each reveals to an attacker."""
    from gradleak.cli.listing import print_defenses

    print_defenses()


@app.command()
def clients() -> None:
    """List how clients train: rules with their settings, and presets that projects use."""
    from gradleak.cli.listing import print_clients

    print_clients()


@app.command()
def threats() -> None:
    """List the named threat models: who attacks, and the settings that each stands for."""
    from gradleak.cli.listing import print_threats

    print_threats()


@app.command()
def metrics() -> None:
    """List the metrics: what each counts, its range and direction."""
    from gradleak.cli.listing import print_metrics

    print_metrics()


@models_app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """List the built-in models and the supported families; `inspect` shows the parts of one model."""
    from gradleak.cli.listing import print_models

    if context.invoked_subcommand is None:
        print_models()


@assets_app.command("list")
def assets_list() -> None:
    """What there is, how large, under which licence, and whether it is cached."""
    from gradleak.cli.listing import print_assets

    print_assets()


@assets_app.command("pull")
def assets_pull(names: Annotated[list[str], typer.Argument(help="Assets to fetch.")]) -> None:
    """Fetch assets into the cache, if they are not there yet."""
    from gradleak.core import assets
    from gradleak.report.live import LiveProgress

    for name in names:
        with LiveProgress() as progress:
            say(f"{name}  {assets.pull(name, progress)}")


@assets_app.command("path")
def assets_path(name: Annotated[str, typer.Argument(help="An asset.")]) -> None:
    """Print the folder of a cached asset."""
    from gradleak.core import assets

    if not assets.is_cached(assets.find(name)):
        raise GradleakError(f"asset {name!r} is not in the cache; fetch it with: gradleak assets pull {name}")
    say(assets.pull(name))
