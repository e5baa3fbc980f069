"""Commands that run many audits, or train: finetune, reproduce, utility, frontier, map, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gradleak.cli.app import app
from gradleak.cli.options import (
    AUDIT,
    LOADING,
    BudgetText,
    ClientSpec,
    Device,
    Entities,
    LabelColumn,
    Model,
    NumLabels,
    Observe,
    Options,
    OtherModel,
    Task,
    TextColumn,
    TextData,
    Training,
    takes,
)
from gradleak.cli.session import budget_of, finish, live, said


@app.command()
@takes(LOADING, text_column=TextColumn, label_column=LabelColumn, budget=BudgetText)
def finetune(
    given: dict[str, Any],
    data: Annotated[
        str, typer.Option(help="A .txt, .csv, .tsv or .jsonl file (a classifier needs labels), or builtin.")
    ],
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
    from gradleak.audits.spec import load_config
    from gradleak.data.texts import read_data
    from gradleak.models.load import load_text_model
    from gradleak.training.finetune import FinetuneSettings, default_model, print_finetuned
    from gradleak.training.finetune import finetune as train

    config = load_config(None, given | {"data": data})
    limit = budget_of(config)
    rows = read_data(data, config.text_column, config.label_column)
    with live(limit) as progress:
        target = load_text_model(
            model or default_model(config.task), task=config.task, num_labels=config.num_labels,
            device=config.device, progress=progress,
        )  # fmt: skip
        settings = FinetuneSettings.usual(
            target.task, epochs=epochs, lr=lr, batch_size=batch_size, checkpoints=checkpoints, seed=seed
        )
        status, figures = train(target, rows, out, settings, limit, progress)
    print_finetuned(status, figures, out)
    finish(limit)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A recipe by name, or a .yaml file; without it, the list.")
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Folder with the corpora.")] = Path("data"),
    model: OtherModel = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Independent batches a cell.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes what is drawn and all other chance.")] = 0,
    only: Annotated[str | None, typer.Option(help="Run the cells whose name matches this pattern.")] = None,
    option: Options = None,
    budget: BudgetText = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; finished cells are kept.")] = None,
) -> None:
    """Run a table of a paper and print its numbers beside ours; run again to go on after a stop."""
    from rich.console import Console

    from gradleak.audits.spec import AuditConfig, parse_options
    from gradleak.cli.listing import print_recipes
    from gradleak.experiments.frontier.table import print_utility
    from gradleak.experiments.reproduce import load_recipe, print_recipe, reproduce_utility, write_table
    from gradleak.experiments.reproduce import reproduce as run

    if name is None:
        print_recipes()
        return
    recipe, limit = load_recipe(name), budget_of(AuditConfig(budget=budget))
    folder = out or Path("gradleak-runs") / f"reproduce-{Path(name).stem}"
    done = []
    with live(limit) as progress:
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
    finish(limit)


@app.command()
def utility(
    model: Model = None,
    data: TextData = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    defense: Annotated[
        list[str] | None,
        typer.Option(help="A setting to compare, such as frozen+noise:sigma=0.001; repeat for more, 'none' is one."),
    ] = None,
    client: ClientSpec = None,
    rounds: Annotated[int, typer.Option(help="Steps of the server.")] = 100,
    clients: Annotated[int, typer.Option(help="Clients in a round.")] = 4,
    batch_size: Annotated[int, typer.Option(help="Private rows of one client.")] = 8,
    lr: Annotated[float, typer.Option(help="Largest step of the server's Adam; it falls in a line to zero.")] = 2e-4,
    seeds: Annotated[int, typer.Option(help="Repetitions, each with its own split, draws and noise.")] = 3,
    test_rows: Annotated[int, typer.Option(help="Rows held out and scored.")] = 200,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    task: Task = None,
    num_labels: NumLabels = None,
    device: Device = None,
    budget: BudgetText = None,
    out: Annotated[Path, typer.Option(help="Folder for utility.json; finished trainings are kept.")] = Path(
        "gradleak-runs/utility"
    ),
) -> None:
    """Train in simulated federated rounds under each defence, and show what it costs; run again to go on."""
    from rich.console import Console

    from gradleak.audits.spec import load_config
    from gradleak.experiments.frontier.table import print_utility
    from gradleak.experiments.frontier.utility import utility as run

    settings = load_config(None, {"budget": budget, "task": task, "num_labels": num_labels})
    limit = budget_of(settings)
    with live(limit) as progress:
        results = run(
            model or "minilm", data=data or "builtin", text_column=text_column, label_column=label_column,
            defenses=defense or [], client=client or "fedsgd", rounds=rounds, clients=clients, batch_size=batch_size,
            lr=lr, seeds=seeds, test_rows=test_rows, seed=seed, task=settings.task, num_labels=num_labels,
            device=device or "cpu", out=out, budget=limit, progress=progress,
        )  # fmt: skip
    place = results.save(out)
    print_utility(results, Console())
    typer.echo(f"results  {place}")
    finish(limit)


@app.command()
def frontier(
    config: Annotated[Path, typer.Argument(help="A frontier.yaml; flags override it.")],
    model: OtherModel = None,
    data: Annotated[str | None, typer.Option(help="Other data than the file names.")] = None,
    trials: Annotated[int | None, typer.Option(help="Attacked updates of every attack and defence.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes what is drawn and all other chance.")] = None,
    device: Annotated[str | None, typer.Option(help="Any torch device, such as cuda or mps.")] = None,
    budget: BudgetText = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; finished cells are kept.")] = None,
) -> None:
    """Attack every defence, train under it, and draw leak against utility, with advice; run again to go on."""
    from rich.console import Console

    from gradleak.audits.spec import AuditConfig
    from gradleak.experiments.frontier.config import load_frontier
    from gradleak.experiments.frontier.run import frontier as run
    from gradleak.experiments.frontier.table import print_frontier
    from gradleak.report.frontier import write_frontier

    settings = load_frontier(config, said(model=model, data=data, trials=trials, seed=seed, device=device))
    limit = budget_of(AuditConfig(budget=budget))
    folder = out or Path("gradleak-runs") / f"frontier-{config.stem}"
    with live(limit) as progress:
        result = run(settings, folder, budget=limit, progress=progress)
    page = write_frontier(result, folder)
    print_frontier(result, Console())
    typer.echo(f"page    {page}\nfigure  {folder / 'frontier.svg'}")
    finish(limit)


@app.command("map")
@takes(AUDIT, data=TextData)
def leak_map(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Argument(help="An audit.yaml; flags override it.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder for the results; finished cells are kept.")] = None,
) -> None:
    """Attack every layer and every module alone, and draw which part of the model leaks; run again to go on."""
    from rich.console import Console

    from gradleak.audits.spec import load_config
    from gradleak.experiments.map.run import leak_map as run
    from gradleak.experiments.map.table import print_map
    from gradleak.report.leakmap import write_map

    settings = load_config(config, given | said(out=out))
    limit = budget_of(settings)
    folder = Path(settings.out or Path("gradleak-runs") / f"map-{Path(settings.model).name}-{settings.attack}")
    with live(limit) as progress:
        result = run(settings, folder, budget=limit, progress=progress)
    page = write_map(result, folder)
    print_map(result, Console())
    typer.echo(f"page    {page}\nfigure  {folder / 'map.svg'}")
    finish(limit)


@app.command("checkpoints")
@takes(AUDIT, model=Training, data=TextData, observe=Observe, entities=Entities)
def audit_checkpoints(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Argument(help="An audit.yaml; flags override it.")] = None,
    metric: Annotated[str, typer.Option(help="What is drawn: best_rougeL, rougeL, nerr, ...")] = "best_rougeL",
    out: Annotated[str | None, typer.Option(help="Folder for the results; finished audits are kept.")] = None,
) -> None:
    """Run one audit on every checkpoint of a training, and draw what it gives away; run again to go on."""
    from rich.console import Console

    from gradleak.audits.spec import load_config
    from gradleak.experiments.checkpoints.run import audit_checkpoints as run
    from gradleak.experiments.checkpoints.table import print_checkpoints
    from gradleak.report.checkpoints import write_checkpoints

    settings = load_config(config, given | said(out=out))
    limit = budget_of(settings)
    folder = Path(
        settings.out or Path("gradleak-runs") / f"checkpoints-{Path(settings.model).name}-{settings.attack}"
    )
    with live(limit) as progress:
        result = run(settings, folder, metric=metric, budget=limit, progress=progress)
    page = write_checkpoints(result, folder)
    print_checkpoints(result, Console())
    typer.echo(f"page    {page}\nfigure  {folder / 'checkpoints.svg'}")
    finish(limit)
