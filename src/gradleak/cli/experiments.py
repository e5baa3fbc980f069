"""Commands that run many audits or trainings as cells: reproduce, utility, frontier, map, checkpoints, sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradleak.cli.app import app
from gradleak.cli.options import AUDIT, BudgetText, RunFlags, takes
from gradleak.cli.session import drop_unset, perform
from gradleak.core.output import say

if TYPE_CHECKING:
    from gradleak.experiments.checkpoints.result import Checkpoints
    from gradleak.experiments.frontier.run import Frontier
    from gradleak.experiments.map.result import LeakMap
    from gradleak.experiments.recipes.run import Reproduced
    from gradleak.experiments.sweep.run import SweepResult
    from gradleak.experiments.utility import UtilityResults

KEPT = "Folder for the results; finished cells are kept."
Out = Annotated[Path | None, typer.Option(help=KEPT)]
RUNS = Path("gradleak-runs")


@app.command()
@takes(
    names=("model", "trials", "seed", "secret", "device", "options"),
    run=True,
    helps={"model": "Another model than the recipe's."},
)
def reproduce(
    given: dict[str, Any],
    flags: RunFlags,
    name: Annotated[
        str | None, typer.Argument(help="A recipe by name, or a .yaml file; without it, the list.")
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Folder with the corpora.")] = Path("data"),
    only: Annotated[str | None, typer.Option(help="Run the lines whose name matches this pattern.")] = None,
    budget: BudgetText = None,
    out: Out = None,
) -> None:
    """Run a table of a paper and print its numbers beside ours; run again to continue after a stop."""
    from gradleak.audits.spec import parse_options
    from gradleak.cli.listing import print_recipes
    from gradleak.experiments.recipes.recipe import load_recipe
    from gradleak.experiments.recipes.run import RecipeExperiment

    if name is None:
        print_recipes()
        return
    options = parse_options(given.pop("options", []))
    experiment = RecipeExperiment(load_recipe(name), data_dir=data_dir, changes=given, only=only, options=options)
    perform(experiment, out or RUNS / f"reproduce-{Path(name).stem}", flags, budget, _show_recipe)


def _show_recipe(result: Reproduced) -> None:
    from gradleak.core.console import SafeConsole
    from gradleak.experiments.frontier.table import print_utility
    from gradleak.experiments.recipes.table import print_recipe, write_markdown

    place = write_markdown(result)
    print_recipe(result)
    say(f"table  {place}")
    if result.utility is not None:
        print_utility(result.utility, SafeConsole())


@app.command()
@takes("model", "loading", "data", names=("client", "seed", "secret"), run=True)
def utility(
    given: dict[str, Any],
    flags: RunFlags,
    defense: Annotated[
        list[str] | None,
        typer.Option(help="A setting to compare, such as frozen+noise:sigma=0.001; repeat for more, 'none' is one."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Steps of the server.")] = 100,
    clients: Annotated[int, typer.Option(help="Clients in a round.")] = 4,
    batch_size: Annotated[int, typer.Option(help="Private rows of one client.")] = 8,
    lr: Annotated[float, typer.Option(help="Largest step of the server's Adam; it decays linearly to zero.")] = 2e-4,
    seeds: Annotated[int, typer.Option(help="Repetitions, each with its own split, draws and noise.")] = 3,
    test_rows: Annotated[int, typer.Option(help="Rows held out and scored.")] = 200,
    server: Annotated[
        str | None,
        typer.Option(
            help="adam: a step of Adam by the mean update; average: the mean of the clients' weights. Default: "
            "average where clients send weights, adam where they send gradients."
        ),
    ] = None,
    budget: BudgetText = None,
    out: Annotated[Path, typer.Option(help="Folder for utility.json; finished trainings are kept.")] = RUNS
    / "utility",
) -> None:
    """Train in simulated federated rounds under each defence, and show what it costs; run again to continue."""
    from gradleak.audits.spec import load_spec
    from gradleak.core.parameters import validated
    from gradleak.defenses.chains import parse_chains
    from gradleak.experiments.utility import Utility, UtilitySpec
    from gradleak.training.rounds import RoundSettings

    values = {"rounds": rounds, "clients": clients, "batch_size": batch_size, "lr": lr, "seeds": seeds}
    spec = UtilitySpec(
        audit=load_spec(None, given),
        rounds=validated(RoundSettings, {**values, "test_rows": test_rows, "server": server}, "utility"),
        defenses=tuple(parse_chains(defense or [])),
    )
    perform(Utility(spec), out, flags, budget, lambda result: _show_utility(result, out))


def _show_utility(result: UtilityResults, folder: Path) -> None:
    from gradleak.core.console import SafeConsole
    from gradleak.experiments.frontier.table import print_utility

    place = result.save(folder)
    print_utility(result, SafeConsole())
    say(f"results  {place}")


@app.command()
@takes(names=("model", "data", "trials", "seed", "secret", "device"), run=True)
def frontier(
    given: dict[str, Any],
    flags: RunFlags,
    config: Annotated[Path, typer.Argument(help="A frontier.yaml; flags override it.")],
    defense: Annotated[
        list[str] | None,
        typer.Option(
            "--defense", "--defenses", help="A setting to compare, instead of the file's; 'common' stands for ten."
        ),
    ] = None,
    budget: BudgetText = None,
    out: Out = None,
) -> None:
    """Attack every defence, train under it, and draw leak against utility, with advice; run again to continue."""
    from gradleak.experiments.frontier.run import FrontierExperiment
    from gradleak.experiments.frontier.spec import load_frontier

    folder = out or RUNS / f"frontier-{config.stem}"
    experiment = FrontierExperiment(load_frontier(config, {**given, **drop_unset(defenses=defense)}))
    perform(experiment, folder, flags, budget, lambda result: _show_frontier(result, folder))


def _show_frontier(result: Frontier, folder: Path) -> None:
    from gradleak.core.console import SafeConsole
    from gradleak.experiments.frontier.table import print_frontier
    from gradleak.report.frontier import write_frontier

    page = write_frontier(result, folder)
    print_frontier(result, SafeConsole())
    say(f"page    {page}", f"figure  {folder / 'frontier.svg'}")


@app.command("map")
@takes(*AUDIT, without=("observe", "memory"), helps={"out": KEPT}, run=True)
def leak_map(
    given: dict[str, Any],
    flags: RunFlags,
    config: Annotated[Path | None, typer.Argument(help="An audit.yaml; flags override it.")] = None,
) -> None:
    """Attack every layer and every module alone, and draw which part of the model leaks; run again to continue."""
    from gradleak.audits.spec import load_spec
    from gradleak.experiments.map.run import Map

    spec = load_spec(config, given)
    folder = Path(spec.out or RUNS / f"map-{Path(spec.model).name}-{spec.attack or 'default'}")
    perform(Map(spec), folder, flags, spec.budget, lambda result: _show_map(result, folder))


def _show_map(result: LeakMap, folder: Path) -> None:
    from gradleak.core.console import SafeConsole
    from gradleak.experiments.map.table import print_map
    from gradleak.report.leakmap import write_map

    page = write_map(result, folder)
    print_map(result, SafeConsole())
    say(f"page    {page}", f"figure  {folder / 'map.svg'}")


@app.command("checkpoints")
@takes(
    *AUDIT, without=("memory",), run=True,
    helps={"model": "Folder of a training, as `gradleak finetune --checkpoints` writes it.", "out": KEPT},
)  # fmt: skip
def audit_checkpoints(
    given: dict[str, Any],
    flags: RunFlags,
    config: Annotated[Path | None, typer.Argument(help="An audit.yaml; flags override it.")] = None,
    metric: Annotated[str, typer.Option(help="What is drawn: best_rougeL, rougeL, nerr, ...")] = "best_rougeL",
) -> None:
    """Run one audit on every checkpoint of a training, and draw what it gives away; run again to continue."""
    from gradleak.audits.spec import load_spec
    from gradleak.experiments.checkpoints.run import CheckpointAudits

    spec = load_spec(config, given)
    folder = Path(spec.out or RUNS / f"checkpoints-{Path(spec.model).name}-{spec.attack or 'default'}")
    experiment = CheckpointAudits(spec, metric)
    perform(experiment, folder, flags, spec.budget, lambda result: _show_checkpoints(result, folder))


def _show_checkpoints(result: Checkpoints, folder: Path) -> None:
    from gradleak.core.console import SafeConsole
    from gradleak.experiments.checkpoints.table import print_checkpoints
    from gradleak.report.checkpoints import write_checkpoints

    page = write_checkpoints(result, folder)
    print_checkpoints(result, SafeConsole())
    say(f"page    {page}", f"figure  {folder / 'checkpoints.svg'}")


@app.command()
@takes(run=True)
def sweep(
    given: dict[str, Any],
    flags: RunFlags,
    config: Annotated[Path, typer.Argument(help="A sweep.yaml: models, data, batch sizes, defences, attacks, ...")],
    budget: BudgetText = None,
    out: Annotated[str | None, typer.Option(help=KEPT)] = None,
) -> None:
    """Audit every combination of models, data, batches, defences and attacks; run again to continue after a stop."""
    from gradleak.experiments.sweep.run import Sweep
    from gradleak.experiments.sweep.spec import load_sweep

    spec = load_sweep(config, drop_unset(out=out))
    folder = Path(spec.out or RUNS / f"sweep-{config.stem}")
    perform(Sweep(spec), folder, flags, budget, _show_sweep, threads=spec.threads, limits=spec.limits)


def _show_sweep(result: SweepResult) -> None:
    from gradleak.core.console import SafeConsole
    from gradleak.experiments.sweep.table import CSV_FILE, print_table

    print_table(result.lines, SafeConsole())
    say(", ".join(f"{count} {status}" for status, count in sorted(result.statuses.items())))
    say(f"table  {result.folder / CSV_FILE}", f"cells  {result.folder / 'cells'}")
    say(f"what it means: gradleak verdict {result.folder}; with a page: gradleak report {result.folder}")
