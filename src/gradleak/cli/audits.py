"""Commands around one audit: demo, audit, capture, attack, score."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradleak.cli.app import app
from gradleak.cli.options import AUDIT, takes
from gradleak.cli.session import finish, live
from gradleak.core.output import say

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gradleak.audits.results import Results
    from gradleak.audits.spec import AuditSpec
    from gradleak.core.progress import Progress


@app.command()
def demo(
    out: Annotated[str, typer.Option(help="Folder for the results.")] = "gradleak-demo",
    seed: Annotated[int, typer.Option(help="Another seed takes other sentences.")] = 3,
) -> None:
    """Show a leak: twelve invented private sentences, read back whole from three of MiniLM's updates."""
    from gradleak.audits.spec import AuditSpec

    say("Three clients each train MiniLM on four private sentences and share only the gradient.")
    say("The attack sees that gradient and the public model. It never sees the sentences.", "")
    run_and_show(AuditSpec(trials=3, batch_size=4, seed=seed, out=out))


@app.command()
@takes(*AUDIT, helps={"out": "Folder for results.json and report.html."})
def audit(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Argument(help="An audit.yaml; flags override it.")] = None,
) -> None:
    """Audit a model: make updates from your data, attack them, score what was read back, write a report."""
    from gradleak.audits.spec import load_spec

    run_and_show(load_spec(config, given))


@app.command()
@takes("model", "data", "client", "loading", "drawing", names=("memory",))
def capture(given: dict[str, Any], out: Annotated[Path, typer.Option(help="The update folder to write.")]) -> None:
    """Make one client's update and write it as a folder; the truth goes into a file of its own beside it."""
    from gradleak.audits.files import capture_update
    from gradleak.audits.spec import load_spec
    from gradleak.report.live import LiveProgress

    with LiveProgress() as progress:
        folder, truth = capture_update(load_spec(None, given), out, progress)
    say(f"update  {folder}", f"truth   {truth}")


@app.command()
@takes(
    "model", "attack", "loading", "scoring", names=("seed", "data", "budget", "memory", "redact", "out"),
    without=("attack_seed",),
    helps={
        "data": "For image models: an .npz whose x_train the attacker holds.",
        "out": "Folder for results.json and report.html; default: one of its own.",
    },
)  # fmt: skip
def attack(
    given: dict[str, Any],
    update: Annotated[Path, typer.Argument(help="An update folder.")],
    truth: Annotated[
        Path | None,
        typer.Option(help="What it was made from (.json, .txt, .csv, .jsonl): read after the attack, to score it."),
    ] = None,
) -> None:
    """Read text or images back from an update folder. No truth is needed, and the attack looks at none."""
    from gradleak.audits.spec import load_spec

    spec = load_spec(None, given)
    limit = spec.time_limit()

    def work(progress: Any) -> Any:
        from gradleak.audits.files import attack_update

        return attack_update(update, spec, truth, limit, progress)

    with results_folder(spec) as folder:
        results, problem = live(limit, work)
        write_and_show(results, folder)
    if problem is not None:
        raise problem
    finish(limit)


@app.command()
@takes("model", "scoring")
def score(
    given: dict[str, Any],
    folder: Annotated[Path, typer.Argument(help="The folder that `attack` wrote.")],
    truth: Annotated[Path, typer.Argument(help="What the update was made from (.json, .txt, .csv, .jsonl).")],
) -> None:
    """Compare what an attack read back with the truth, sentence by sentence or image by image."""
    from gradleak.audits.files import score_files
    from gradleak.audits.spec import load_spec
    from gradleak.report.live import LiveProgress
    from gradleak.report.reconstruction import print_score

    with LiveProgress() as progress:
        scored = score_files(folder, truth, load_spec(None, given), progress)
    print_score(scored)


def run_and_show(spec: AuditSpec) -> None:
    limit = spec.time_limit()

    def work(progress: Progress) -> Results:
        from gradleak.audits.run import audit as run

        return run(spec, budget=limit, progress=progress)

    with results_folder(spec) as folder:
        results = live(limit, work)
        write_and_show(results, folder)
    finish(limit)


def results_folder(spec: AuditSpec) -> AbstractContextManager[Path]:
    """The folder that was asked for, or a new one for this run."""
    from datetime import datetime

    from gradleak.core.files import output_folder

    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return output_folder(spec.out or Path("gradleak-runs") / f"{stamp}-{spec.attack or 'audit'}")


def write_and_show(results: Results, folder: Path) -> None:
    """Write a run's results and show them with their verdict and page."""
    from gradleak.cli.verdicts import show
    from gradleak.verdict.gather import Gathered

    place = results.save(folder)
    show(Gathered(folder, [results]))
    say(f"results  {place}")
