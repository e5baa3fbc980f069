"""Commands for images alone: grid."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradleak.cli.app import app
from gradleak.core.output import say


@app.command()
def grid(
    folders: Annotated[list[Path], typer.Argument(help="Folders with audits of the same images, or files of cells.")],
    images: Annotated[int, typer.Option(min=1, help="How many images to show.")] = 6,
    out: Annotated[Path, typer.Option(help="Folder for grid.html and grid.svg.")] = Path("gradleak-runs/grid"),
) -> None:
    """Join audits of an image model into one page: true and recovered images, a line for each defence and attack."""
    from gradleak.core.files import output_folder
    from gradleak.report.grid import write_grid

    with output_folder(out) as place:
        page, drawing = write_grid(folders, place, images)
    say(f"page    {page}", f"figure  {drawing}")
