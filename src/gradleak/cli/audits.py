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
    from gradleak.audits.spec import AuditSpec


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
@takes("model", "data", "client", "loading", "drawing")
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
    "model", "attack", "loading", names=("seed", "data", "budget"), without=("attack_seed",),
    helps={"data": "For image models: an .npz whose x_train the attacker holds."},
)  # fmt: skip
def attack(
    given: dict[str, Any],
    update: Annotated[Path, typer.Argument(help="An update folder.")],
    out: Annotated[Path | None, typer.Option(help="Folder for reconstruction.json.")] = None,
) -> None:
    """Read text or images back from an update folder. No truth is needed and none is looked at."""
    from gradleak.audits.files import attack_update
    from gradleak.audits.spec import load_spec
    from gradleak.report.reconstruction import print_reconstruction

    spec = load_spec(None, given)
    limit = spec.time_limit()
    with live(limit) as progress:
        answer, written = attack_update(update, spec, out, limit, progress)
    print_reconstruction(answer)
    if written:
        say(f"reconstruction  {written}")
    finish(limit)


@app.command()
@takes("model", "scoring")
def score(
    given: dict[str, Any],
    reconstruction: Annotated[Path, typer.Argument(help="A reconstruction.json.")],
    truth: Annotated[Path, typer.Argument(help="The truth file that `capture` wrote.")],
) -> None:
    """Compare a reconstruction with the truth."""
    from gradleak.audits.files import score_files
    from gradleak.audits.spec import load_spec
    from gradleak.report.live import LiveProgress
    from gradleak.report.reconstruction import print_score

    with LiveProgress() as progress:
        scored = score_files(reconstruction, truth, load_spec(None, given), progress)
    print_score(scored)


def run_and_show(spec: AuditSpec) -> None:
    from datetime import datetime

    from gradleak.core.files import output_folder

    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    limit = spec.time_limit()
    with output_folder(spec.out or Path("gradleak-runs") / f"{stamp}-{spec.attack or 'audit'}") as folder:
        with live(limit) as progress:
            progress.begin("starting", 0)  # what is imported here takes seconds, on a busy machine many
            from gradleak.audits.run import audit as run
            from gradleak.cli.verdicts import show
            from gradleak.verdict.gather import Gathered

            results = run(spec, budget=limit, progress=progress)
        place = results.save(folder)
        show(Gathered(folder, [results]))
        say(f"results  {place}")
    finish(limit)
