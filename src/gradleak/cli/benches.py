"""Commands that measure gradleak itself: speed, as ratios within one run, and whether sweeps survive being killed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradleak.cli.app import app
from gradleak.cli.command import App
from gradleak.cli.options import BudgetText
from gradleak.cli.session import finish, live
from gradleak.core.output import say

bench_app = App("Measure speed, as ratios within one run, and trust.")
app.add_typer(bench_app, name="bench")


@bench_app.command("engine")
def bench_engine(
    models: Annotated[str, typer.Option(help="Comma-separated; bert-base has random weights.")] = "minilm,bert-base",
    seconds: Annotated[float, typer.Option(help="Longest time for one line of the table.")] = 180,
    json: Annotated[Path | None, typer.Option(help="Write the figures here too.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw how a step grows with tokens and attacks.")] = None,
    precision: Annotated[str, typer.Option(help="Of the engine: fp32, or bf16; the oracle stays in fp32.")] = "fp32",
) -> None:
    """The factor engine against the plain one, interleaved in one run."""
    from gradleak.bench.show import run_engine_bench
    from gradleak.report.live import LiveProgress

    with LiveProgress() as progress:
        run_engine_bench(tuple(models.split(",")), seconds, json, svg, precision, progress)


@bench_app.command("beam")
def bench_beam(
    model: Annotated[str, typer.Option(help="A causal language model.")] = "smollm2",
    beams: Annotated[int, typer.Option(min=1, help="Sentences that grow at once.")] = 32,
    bag: Annotated[int, typer.Option(min=2, help="Tokens to choose from.")] = 200,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a sentence.")] = 24,
    seconds: Annotated[float, typer.Option(help="Longest time.")] = 300,
) -> None:
    """The beam search of `film` against the plain way (full vocabulary, no cache), interleaved in one run."""
    from gradleak.bench.beam import bench_beam as run
    from gradleak.report.live import LiveProgress

    with LiveProgress() as progress:
        progress.begin(f"{model}: beam search", 1)
        found = run(model, beams, bag, length, seconds)
        progress.end()
    slow, fast = found.tokens_per_second
    ratio = found.ratio
    say(
        f"{model}, {beams} beams, {bag} tokens, {length} long: {fast:,.0f} tokens a second against {slow:,.0f}, "
        f"{ratio.ratio:.1f} times (95 % interval {ratio.low:.1f} to {ratio.high:.1f}, {ratio.rounds} rounds)"
    )


@bench_app.command("trust")
def bench_trust(
    folder: Annotated[Path, typer.Argument(help="A new folder on the disk that is to be tried.")],
    model: Annotated[str, typer.Option(help="Built-in name or folder; the smaller, the sooner.")] = "minilm",
    kills: Annotated[int, typer.Option(min=1, help="How often the sweep is killed.")] = 50,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes of the sweep.")] = 2,
    together: Annotated[int, typer.Option(min=1, help="Cells that share the engine's passes.")] = 1,
    seed: Annotated[int, typer.Option(help="Fixes who is killed, and when.")] = 0,
    budget: BudgetText = None,
) -> None:
    """Kill a sweep or its workers at random moments; check that nothing was lost, run twice, left over or changed."""
    from gradleak.bench.trust import bench_trust as run
    from gradleak.core.budget import Budget

    limit = Budget.of(budget)
    settings = {"workers": workers, "together": together, "seed": seed}
    found = live(limit, lambda progress: run(folder, model, kills, **settings, budget=limit, progress=progress))
    say(*str(found).splitlines())
    finish(limit)
    if not found.held:
        raise typer.Exit(1)


@bench_app.command("store")
def bench_store(
    folder: Annotated[Path, typer.Argument(help="A new folder on the disk that is to be tried.")],
    model: Annotated[str, typer.Option(help="Built-in name or folder.")] = "minilm",
    cells: Annotated[int, typer.Option(min=80, help="How many cells to plan and write.")] = 10_000,
) -> None:
    """Plan, write and look over a large sweep's cells, all with one result: what the driver and the disk bear."""
    from gradleak.bench.store import bench_store as run
    from gradleak.report.live import LiveProgress

    with LiveProgress() as progress:
        found = run(folder, model, cells, progress)
    say(*str(found).splitlines())


@bench_app.command("lti")
def bench_lti(
    model: Annotated[str, typer.Option(help="Built-in name, Hugging Face folder or hub id.")] = "lti",
    batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 64,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a sequence.")] = 16,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs over them; the paper has 20.")] = 20,
    seconds: Annotated[float, typer.Option(help="Longest time.")] = 180,
) -> None:
    """Hashed gradients in a batch and kept, against one at a time in every epoch, interleaved in one run."""
    from gradleak.bench.lti import bench_lti as run
    from gradleak.report.live import LiveProgress

    with LiveProgress() as progress:
        progress.begin(f"{model}: hashed gradients", 1)
        found = run(model, batch, length, epochs, seconds)
        progress.end()
    say(f"{model}, {found.coordinates:,} coordinates to {found.bins:,} bins, {batch} sequences of {length}")
    for what, ratio in (("one epoch", found.once), (f"{epochs} epochs, kept", found.epochs)):
        say(
            f"{what}: {1 / ratio.fast_seconds:,.0f} sequences a second against {1 / ratio.slow_seconds:,.0f}, "
            f"{ratio.ratio:.1f} times (95 % interval {ratio.low:.1f} to {ratio.high:.1f}, {ratio.rounds} rounds)"
        )
