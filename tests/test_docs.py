"""What the documentation says exists: commands, options, files, extras, links, code that compiles.

Commands are only parsed here; `tests/updates/integrations/test_docs_run.py` runs those of the guides.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from typing import Any

import pytest
import typer
from docs_pages import DOCS, GUIDES, ROOT, blocks, commands, shell_commands

from gradleak.cli import app

PAGES = sorted(DOCS.glob("*.md"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


COMMAND: Any = typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Let the command line read the words as it would, and stop before anything is done."""
    command, rest = COMMAND, list(words)
    while hasattr(command, "commands"):
        name = rest.pop(0)
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    command.make_context(command.name, rest)


def check(words: list[str], written: Collection[str | None] = ()) -> None:
    """`written` are the files that the page itself shows."""
    if words[0] == "gradleak":
        parse(words[1:])
    elif words[0] == "python":
        assert words[1] in written or (ROOT / words[1]).is_file(), f"there is no {words[1]}"
    elif words[:2] == ["pip", "install"]:
        for extra in re.findall(r"\[([\w,]+)\]", words[2]):
            assert set(extra.split(",")) <= EXTRAS.keys()
    else:
        raise AssertionError(f"a command that nothing checks: {' '.join(words)}")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_every_command_is_one(page):
    written = {block.title for block in blocks(page)}
    for words in shell_commands(page):
        try:
            check(words, written)
        except Exception as error:
            raise AssertionError(f"{' '.join(words)}: {error}") from error


def test_the_check_notices():
    for wrong in ("gradleak audti", "gradleak audit --modle x", "gradleak audit --trials many", "rm -rf x",
                  "python examples/none.py", "pip install x[nothing]"):  # fmt: skip
        with pytest.raises(Exception, match=r"."):
            check(commands(wrong)[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_compiles(page):
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, f"{page.name}", "exec")


def test_every_guide_is_in_the_index_and_in_the_site():
    index, site = (DOCS / "index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for name in GUIDES:
        assert name == "index" or f"({name}.md)" in index
    for page in PAGES:
        assert f" {page.name}" in site
