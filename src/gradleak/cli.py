"""The command line: parse, call, print. Every error a user can mend is one line on stderr and exit code 2."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradleak.cli_options import (
    ATTACK,
    AUDIT,
    CLIENT,
    DATA,
    DRAWING,
    LOADING,
    BudgetText,
    ClientSpec,
    Data,
    Device,
    Entities,
    LabelColumn,
    Model,
    NumLabels,
    Observe,
    Options,
    Seed,
    Task,
    TextColumn,
    Training,
    takes,
)
from gradleak.errors import GradleakError
from gradleak.version import __version__

if TYPE_CHECKING:
    from gradleak.budget import Budget
    from gradleak.config import AuditConfig
    from gradleak.results import Results

app = typer.Typer(
    help="Measure how much private text can be read back from federated-learning updates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
assets_app = typer.Typer(help="Pinned weights and corpora: list, fetch, locate.", no_args_is_help=True)
app.add_typer(assets_app, name="assets")
bench_app = typer.Typer(help="Measure speed, as ratios within one run.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")

Redact = Annotated[bool, typer.Option("--redact", help="Mask all texts in what is written and shown.")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"gradleak {__version__}")
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[str, typer.Option(help="Folder for the results.")] = "gradleak-demo",
    seed: Annotated[int, typer.Option(help="Another seed takes other sentences.")] = 3,
) -> None:
    """Show a leak: twelve invented private sentences, read back whole from three of MiniLM's updates."""
    from gradleak.config import AuditConfig

    typer.echo("Three clients each train MiniLM on four private sentences and share only the gradient.")
    typer.echo("The attack sees that gradient and the public model. It never sees the sentences.\n")
    _audit(AuditConfig(trials=3, batch_size=4, seed=seed, out=out))


@app.command()
@takes(AUDIT, observe=Observe, entities=Entities)
def audit(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Argument(help="An audit.yaml; flags override it.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder for results.json and report.html.")] = None,
    redact: Redact = False,
) -> None:
    """Audit a model: make updates from your data, attack them, score what was read back, write a report."""
    from gradleak.config import load_config

    _audit(load_config(config, given | _said(out=out, redact=redact or None)))


@app.command()
@takes(DATA | CLIENT | LOADING | DRAWING, observe=Observe)
def capture(given: dict[str, Any], out: Annotated[Path, typer.Option(help="The update folder to write.")]) -> None:
    """Make one client's update and write it as a folder; the truth goes into a file of its own beside it."""
    from gradleak.capturing import capture_update
    from gradleak.config import load_config
    from gradleak.terminal import LiveProgress

    with LiveProgress() as progress:
        folder, truth = capture_update(load_config(None, given), out, progress)
    typer.echo(f"update  {folder}\ntruth   {truth}")


@app.command()
@takes(ATTACK | LOADING, model=Model, seed=Seed)
def attack(
    given: dict[str, Any],
    update: Annotated[Path, typer.Argument(help="An update folder.")],
    out: Annotated[Path | None, typer.Option(help="Folder for reconstruction.json.")] = None,
) -> None:
    """Read text back from an update folder. No truth is needed and none is looked at."""
    from gradleak.config import load_config
    from gradleak.reconstructing import print_reconstruction, reconstruct

    settings = load_config(None, given)
    limit = _budget(settings)
    with _progress(limit) as progress:
        found, written = reconstruct(update, settings, out, limit, progress)
    print_reconstruction(found)
    if written:
        typer.echo(f"reconstruction  {written}")
    _exit(limit)


@app.command()
def score(
    reconstruction: Annotated[Path, typer.Argument(help="A reconstruction.json.")],
    truth: Annotated[Path, typer.Argument(help="The truth file that `capture` wrote.")],
    model: Model = "minilm",
    entities: Entities = None,
) -> None:
    """Compare a reconstruction with the truth."""
    from gradleak.reconstructing import print_score, score_files

    print_score(score_files(reconstruction, truth, model or "minilm", bool(entities)))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder an audit wrote.")],
    redact: Redact = False,
) -> None:
    """Print a result again and write its page anew."""
    from gradleak.results import load_results

    results = load_results(folder)
    _show(_masked(results, redact), folder)


@app.command()
@takes(LOADING, text_column=TextColumn, label_column=LabelColumn, budget=BudgetText)
def finetune(
    given: dict[str, Any],
    data: Annotated[str, typer.Option(help="A .txt, .csv, .tsv or .jsonl file, or 'builtin'; classes need labels.")],
    out: Annotated[Path, typer.Option(help="Folder for the model; run again with it to go on after a stop.")],
    model: Annotated[str | None, typer.Option(help="Default: minilm, or smollm2 for --task lm.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 2,
    lr: Annotated[
        float | None,
        typer.Option(min=0.0, help="Largest step size of AdamW; it falls in a line to zero. Default: 5e-5, lm 1e-5."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Sentences of a step. Default: 32, lm 16.")] = None,
    checkpoints: Annotated[
        int, typer.Option(min=0, help="Keep the model at so many points before the end too, the start first.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Fixes the split, the order and dropout.")] = 0,
) -> None:
    """Fine-tune a classifier or language model and write it as a Hugging Face folder that audits take by its path."""
    from gradleak.config import load_config
    from gradleak.finetuning import FinetuneSettings, default_model, print_finetuned
    from gradleak.finetuning import finetune as train
    from gradleak.models.load import load_model
    from gradleak.scenario.data import read_data

    config = load_config(None, given | {"data": data})
    limit = _budget(config)
    rows = read_data(data, config.text_column, config.label_column)
    with _progress(limit) as progress:
        target = load_model(
            model or default_model(config.task), task=config.task, num_labels=config.num_labels,
            device=config.device, progress=progress,
        )  # fmt: skip
        settings = FinetuneSettings.usual(
            target.task, epochs=epochs, lr=lr, batch_size=batch_size, checkpoints=checkpoints, seed=seed
        )
        status, figures = train(target, rows, out, settings, limit, progress)
    print_finetuned(status, figures, out)
    _exit(limit)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A recipe by name, or a .yaml file; without it, the list.")
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Folder with the corpora.")] = Path("data"),
    model: Model = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Independent batches a cell.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes the texts drawn and all randomness.")] = 0,
    only: Annotated[str | None, typer.Option(help="Run the cells whose name matches this pattern.")] = None,
    option: Options = None,
    budget: BudgetText = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; finished cells are kept.")] = None,
) -> None:
    """Run a table of a paper and print its numbers beside ours; run again to go on after a stop."""
    from rich.console import Console

    from gradleak.config import AuditConfig, parse_options
    from gradleak.listing import print_recipes
    from gradleak.reproducing import load_recipe, print_recipe, reproduce_utility, write_table
    from gradleak.reproducing import reproduce as run
    from gradleak.tradeoff.table import print_utility

    if name is None:
        print_recipes()
        return
    recipe, limit = load_recipe(name), _budget(AuditConfig(budget=budget))
    folder = out or Path("gradleak-runs") / f"reproduce-{Path(name).stem}"
    done = []
    with _progress(limit) as progress:
        for cell, results in run(
            recipe, data_dir=data_dir, out=folder, model=model, trials=trials, seed=seed, only=only,
            options=parse_options(option or []), budget=limit, progress=progress,
        ):  # fmt: skip
            done.append((cell, results))
            write_table(folder, recipe, done)
        learned = None
        if only is None:  # what the model learns belongs to the whole table
            learned = reproduce_utility(
                recipe, data_dir=data_dir, out=folder / "utility", model=model, seed=seed, budget=limit,
                progress=progress,
            )  # fmt: skip
    print_recipe(recipe, done, model or recipe.model, folder)
    if learned is not None:
        print_utility(learned, Console())
    _exit(limit)


@app.command()
def utility(
    model: Model = "minilm",
    data: Data = "builtin",
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    defense: Annotated[
        list[str] | None,
        typer.Option(help="A setting to compare, such as frozen+noise:sigma=0.001; repeat for more, 'none' is one."),
    ] = None,
    client: ClientSpec = "fedsgd",
    rounds: Annotated[int, typer.Option(help="Steps of the server.")] = 100,
    clients: Annotated[int, typer.Option(help="Clients in a round.")] = 4,
    batch_size: Annotated[int, typer.Option(help="Private rows of one client.")] = 8,
    lr: Annotated[float, typer.Option(help="Largest step of the server's Adam; it falls in a line to zero.")] = 2e-4,
    seeds: Annotated[int, typer.Option(help="Repetitions, each with its own split, draws and noise.")] = 3,
    test_rows: Annotated[int, typer.Option(help="Rows held out and scored.")] = 200,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    task: Task = None,
    num_labels: NumLabels = None,
    device: Device = "cpu",
    budget: BudgetText = None,
    out: Annotated[Path, typer.Option(help="Folder for utility.json; finished trainings are kept.")] = Path(
        "gradleak-runs/utility"
    ),
) -> None:
    """Train in simulated federated rounds under each defence, and show what it costs; run again to go on."""
    from rich.console import Console

    from gradleak.config import load_config
    from gradleak.tradeoff.table import print_utility
    from gradleak.tradeoff.utility import utility as run

    settings = load_config(None, {"budget": budget, "task": task, "num_labels": num_labels})
    limit = _budget(settings)
    with _progress(limit) as progress:
        results = run(
            model or "minilm", data=data or "builtin", text_column=text_column, label_column=label_column,
            defenses=defense or [], client=client or "fedsgd", rounds=rounds, clients=clients, batch_size=batch_size,
            lr=lr, seeds=seeds, test_rows=test_rows, seed=seed, task=settings.task, num_labels=num_labels,
            device=device or "cpu", out=out, budget=limit, progress=progress,
        )  # fmt: skip
    place = results.save(out)
    print_utility(results, Console())
    typer.echo(f"results  {place}")
    _exit(limit)


@app.command()
def frontier(
    config: Annotated[Path, typer.Argument(help="A frontier.yaml; flags override it.")],
    model: Model = None,
    data: Data = None,
    trials: Annotated[int | None, typer.Option(help="Attacked updates of every attack and defence.")] = None,
    seed: Seed = None,
    device: Device = None,
    budget: BudgetText = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; finished cells are kept.")] = None,
) -> None:
    """Attack every defence, train under it, and draw leak against utility, with advice; run again to go on."""
    from rich.console import Console

    from gradleak.config import AuditConfig
    from gradleak.report.frontier import write_frontier
    from gradleak.tradeoff.config import load_frontier
    from gradleak.tradeoff.frontier import frontier as run
    from gradleak.tradeoff.table import print_frontier

    settings = load_frontier(config, _said(model=model, data=data, trials=trials, seed=seed, device=device))
    limit = _budget(AuditConfig(budget=budget))
    folder = out or Path("gradleak-runs") / f"frontier-{config.stem}"
    with _progress(limit) as progress:
        result = run(settings, folder, budget=limit, progress=progress)
    page = write_frontier(result, folder)
    print_frontier(result, Console())
    typer.echo(f"page    {page}\nfigure  {folder / 'frontier.svg'}")
    _exit(limit)


@app.command("map")
@takes(AUDIT)
def leak_map(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Argument(help="An audit.yaml; flags override it.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder for the results; finished cells are kept.")] = None,
) -> None:
    """Attack every layer and every module alone, and draw which part of the model leaks; run again to go on."""
    from rich.console import Console

    from gradleak.config import load_config
    from gradleak.leakmap.run import leak_map as run
    from gradleak.leakmap.table import print_map
    from gradleak.report.leakmap import write_map

    settings = load_config(config, given | _said(out=out))
    limit = _budget(settings)
    folder = Path(settings.out or Path("gradleak-runs") / f"map-{Path(settings.model).name}-{settings.attack}")
    with _progress(limit) as progress:
        result = run(settings, folder, budget=limit, progress=progress)
    page = write_map(result, folder)
    print_map(result, Console())
    typer.echo(f"page    {page}\nfigure  {folder / 'map.svg'}")
    _exit(limit)


@app.command("checkpoints")
@takes(AUDIT, model=Training, observe=Observe, entities=Entities)
def audit_checkpoints(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Argument(help="An audit.yaml; flags override it.")] = None,
    metric: Annotated[str, typer.Option(help="What is drawn: best_rougeL, rougeL, nerr, ...")] = "best_rougeL",
    out: Annotated[str | None, typer.Option(help="Folder for the results; finished audits are kept.")] = None,
) -> None:
    """Run one audit on every checkpoint of a training, and draw what it gives away; run again to go on."""
    from rich.console import Console

    from gradleak.checkpoints.run import audit_checkpoints as run
    from gradleak.checkpoints.table import print_checkpoints
    from gradleak.config import load_config
    from gradleak.report.checkpoints import write_checkpoints

    settings = load_config(config, given | _said(out=out))
    limit = _budget(settings)
    folder = Path(
        settings.out or Path("gradleak-runs") / f"checkpoints-{Path(settings.model).name}-{settings.attack}"
    )
    with _progress(limit) as progress:
        result = run(settings, folder, metric=metric, budget=limit, progress=progress)
    page = write_checkpoints(result, folder)
    print_checkpoints(result, Console())
    typer.echo(f"page    {page}\nfigure  {folder / 'checkpoints.svg'}")
    _exit(limit)


@app.command()
def attacks() -> None:
    """List the attacks with their options."""
    from gradleak.listing import print_attacks

    print_attacks()


@app.command()
def defenses() -> None:
    """List the defences with their strengths and what each tells an attacker."""
    from gradleak.listing import print_defenses

    print_defenses()


@app.command()
def models() -> None:
    """List the built-in models and the supported families."""
    from gradleak.listing import print_models

    print_models()


@assets_app.command("list")
def assets_list() -> None:
    """What there is, how large, under which licence, and whether it is cached."""
    from gradleak.listing import print_assets

    print_assets()


@assets_app.command("pull")
def assets_pull(names: Annotated[list[str], typer.Argument(help="Assets to fetch.")]) -> None:
    """Fetch assets into the cache, if they are not there yet."""
    from gradleak import assets
    from gradleak.terminal import LiveProgress

    for name in names:
        with LiveProgress() as progress:
            typer.echo(f"{name}  {assets.pull(name, progress)}")


@assets_app.command("path")
def assets_path(name: Annotated[str, typer.Argument(help="An asset.")]) -> None:
    """Print the folder of a cached asset."""
    from gradleak import assets

    if not assets.is_cached(assets.find(name)):
        raise GradleakError(f"asset {name!r} is not in the cache; fetch it with: gradleak assets pull {name}")
    typer.echo(assets.pull(name))


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
    from gradleak.terminal import LiveProgress

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
    from gradleak.terminal import LiveProgress

    with LiveProgress() as progress:
        progress.begin(f"{model}: beam search", 1)
        found = run(model, beams, bag, length, seconds)
        progress.end()
    slow, fast = found.tokens_per_second
    ratio = found.ratio
    typer.echo(
        f"{model}, {beams} beams, {bag} tokens, {length} long: {fast:,.0f} tokens a second against {slow:,.0f}, "
        f"{ratio.ratio:.1f} times (95 % interval {ratio.low:.1f} to {ratio.high:.1f}, {ratio.rounds} rounds)"
    )


def _said(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _audit(config: AuditConfig) -> None:
    from datetime import datetime

    from gradleak.auditing import audit as run_audit
    from gradleak.files import output_folder

    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    chosen = config.out or Path("gradleak-runs") / f"{stamp}-{config.attack}"
    limit = _budget(config)
    with output_folder(chosen) as folder:
        with _progress(limit) as progress:
            settings = config.model_dump(exclude={"out", "redact", "budget"})
            results = _masked(run_audit(**settings, budget=limit, progress=progress), config.redact)
        results.save(folder)
        _show(results, folder)
    _exit(limit)


def _show(results: Results, folder: Path) -> None:
    from rich.console import Console

    from gradleak.report.build import write_report
    from gradleak.terminal import print_results

    page = write_report(results, folder)
    print_results(results, Console(), sentences=20)
    typer.echo(f"\nresults  {folder / 'results.json'}\nreport   {page}")


def _masked(results: Results, wanted: bool) -> Results:
    from gradleak.redact import redact

    return redact(results) if wanted else results


def _budget(config: AuditConfig) -> Budget:
    from gradleak.budget import Budget

    return Budget(config.seconds)


@contextmanager
def _progress(budget: Budget) -> Iterator[Any]:
    """A live bar; the first Ctrl-C asks the attack to stop and keep what it has, the second stops at once."""
    from gradleak.terminal import LiveProgress

    def stop(number: int, frame: FrameType | None) -> None:
        budget.interrupt()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, stop)
    try:
        with LiveProgress() as progress:
            yield progress
    finally:
        signal.signal(signal.SIGINT, previous)


def _exit(budget: Budget) -> None:
    if budget.interrupted:
        raise typer.Exit(130)


def main() -> None:
    """Run the command line; the only place where an error becomes an exit code."""
    try:
        app()
    except GradleakError as error:
        print(f"gradleak: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("gradleak: interrupted", file=sys.stderr)
        sys.exit(130)
