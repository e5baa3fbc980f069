"""Runs docs/tutorial.ipynb and keeps what it prints: python docs/run_tutorial.py

No Jupyter is needed: every cell prints what it shows, and all cells share one namespace. A test runs it too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).with_name("tutorial.ipynb")


def run(notebook: dict[str, Any], folder: str) -> list[str]:
    """Run the code cells one after the other in a folder; what each printed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    with contextlib.chdir(folder):
        for number, cell in enumerate(code_cells(notebook), 1):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile("".join(cell["source"]), f"tutorial.ipynb, cell {number}", "exec"), names)
            printed.append(out.getvalue())
    return printed


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def main() -> None:
    os.environ["COLUMNS"] = "110"
    notebook = json.loads(NOTEBOOK.read_text())
    with tempfile.TemporaryDirectory() as folder:
        printed = run(notebook, folder)
    for number, (cell, text) in enumerate(zip(code_cells(notebook), printed, strict=True), 1):
        output = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
        cell.update(execution_count=number, outputs=[output] if text else [])
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
