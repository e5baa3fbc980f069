"""What mkdocs is told beside mkdocs.yml: the notebook as a page, and links that leave the documentation.

Pages link to files of the repository, such as CONTRIBUTING.md, which are no part of the site: there they are shown as
names. The tests check that the files exist.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

DOCS = Path(__file__).parent
NOTEBOOK, PAGE = DOCS / "tutorial.ipynb", "tutorial.md"
# What stands behind a language is for the tests, but for a title.
_MARKED = re.compile(r"^(```\w+) (?!title=).*$", re.M)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!\w+:|#)([^)#\s]+)(#[\w-]+)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the notebook as a page."""
    files.append(File.generated(config, PAGE, content=notebook_page(json.loads(NOTEBOOK.read_text()))))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files outside of the documentation become their names, those to the notebook lead to its page.

    Marks for tests go.
    """
    here = (DOCS / page.file.src_uri).parent

    def inside(match: re.Match[str]) -> str:
        target = (here / match[2]).resolve()
        if target == NOTEBOOK and page.file.src_uri != PAGE:
            return f"[{match[1]}]({match[2].replace(NOTEBOOK.name, PAGE)})"
        return match[0] if target.is_relative_to(DOCS) else match[1]

    return _LINK.sub(inside, _MARKED.sub(r"\1", markdown))


def notebook_page(notebook: dict[str, Any]) -> str:
    """Text cells as they are, code in blocks, and below each what it printed when the notebook was last run."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        printed = "".join("".join(_printed(output)) for output in cell.get("outputs", ()))
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n\n[This page as a notebook](tutorial.ipynb)\n"


def _printed(output: dict[str, Any]) -> list[str]:
    return list(output.get("text") or output.get("data", {}).get("text/plain", []))
