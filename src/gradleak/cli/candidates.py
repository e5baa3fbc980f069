"""Commands about sentences that somebody already has: contains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gradleak.cli.app import app
from gradleak.cli.options import takes
from gradleak.cli.session import finish, live
from gradleak.core.output import say


@app.command()
@takes(
    "model", "loading", names=("seed", "budget", "memory", "redact", "out"),
    helps={
        "out": "Folder for contains.json; default: one of its own.",
        "seed": "Fixes which public sentences are taken; default: 0.",
    },
)  # fmt: skip
def contains(
    given: dict[str, Any],
    update: Annotated[Path, typer.Argument(help="An update folder.")],
    texts: Annotated[Path, typer.Option(help="The candidates: a .txt, .csv, .tsv or .jsonl file.")],
    public: Annotated[
        Path | None,
        typer.Option(
            help="Texts of the same kind that were not in it (.txt, .csv, .tsv, .jsonl); default: WikiText-2."
        ),
    ] = None,
    references: Annotated[
        int, typer.Option(min=12, help="Public sentences to count false alarms on; 999 are needed to show 0.1 %.")
    ] = 240,
) -> None:
    """Say of sentences you have whether an update was made from them, each with its false-alarm rate."""
    from gradleak.audits.spec import load_spec
    from gradleak.cli.audits import results_folder
    from gradleak.core.privacy import redacting

    spec = load_spec(None, {**given, "attack": "contains"})
    limit = spec.time_limit()

    def work(progress: Any) -> Any:
        from gradleak.audits.candidates import look_for

        return look_for(update, spec, texts, public, references, limit, progress)

    with redacting(spec.redact), results_folder(spec) as folder:
        found = live(limit, work)
        place = found.save(folder)
        from gradleak.core.console import SafeConsole
        from gradleak.report.candidates import print_containment

        print_containment(found, SafeConsole())
        say(f"results  {place}")
    finish(limit)
