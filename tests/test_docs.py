"""What the documentation says exists: commands, options, files, extras, links, names, code that compiles.

Commands are only parsed here; `tests/updates/integrations/test_docs_run.py` runs those of the guides.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import sys
import tomllib
from collections.abc import Collection
from functools import reduce
from typing import Any

import pytest
import typer
import yaml
from docs_pages import (
    DOCS,
    ENTRY_POINTS,
    GUIDES,
    ROOT,
    blocks,
    commands,
    dotted_names,
    file_names,
    imported_names,
    shell_commands,
)

import gradleak
from gradleak import SweepSpec, load_frontier, load_spec, load_sweep
from gradleak.attacks import ATTACKS, IMAGE_ATTACKS
from gradleak.audits.modality import MODALITIES
from gradleak.cli import app
from gradleak.defenses import DEFENSES
from gradleak.models.families import FAMILIES
from gradleak.scoring.metrics import METRICS

PAGES = sorted(DOCS.rglob("*.md"))
EVERY_PAGE = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


COMMAND: Any = typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Let the command line read the words as it would, and stop before anything is done."""
    command, rest = COMMAND, list(words)
    while hasattr(command, "commands"):
        if not rest and command.invoke_without_command:
            return
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


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.stem)
def test_links_to_headings_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([\w-]+)\)", page.read_text()):
        text = (page.parent / target if target else page).read_text()
        headings = (re.sub(r"[^\w\s-]", "", line.lower()) for line in re.findall(r"^#+ (.*)$", text, re.M))
        assert anchor in {heading.strip().replace(" ", "-") for heading in headings}, f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_compiles(page):
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, f"{page.name}", "exec")


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.stem)
def test_names_of_ours_exist(page):
    for dotted in [*(f"{module}.{name}" for module, name in imported_names(page)), *dotted_names(page)]:
        assert _resolves(dotted), dotted


def _resolves(dotted: str) -> bool:
    """Whether a module, or an attribute of one, goes by this name."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        except ImportError:  # ours, but it needs a library that is not here
            return True
        try:
            return reduce(getattr, parts[count:], module) is not None
        except AttributeError:
            return False
    return False


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.stem)
def test_files_of_ours_exist(page):
    places = (ROOT, ROOT / "src" / "gradleak", page.parent)
    written = {block.title for block in blocks(page)}
    for name in file_names(page):
        assert name in written or any((place / name).exists() for place in places), name


def test_the_names_checks_notice(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`gradleak.scenario` and `attacks/parts/x.py`\n\n```python\nfrom gradleak import audit_images\n```\n"
    )
    assert [_resolves(name) for name in dotted_names(page)] == [False]
    assert file_names(page) == ["attacks/parts/x.py"]
    assert imported_names(page) == [("gradleak", "audit_images")]
    assert not hasattr(gradleak, "audit_images")


def test_every_guide_is_in_the_index_and_in_the_site():
    index, site = (DOCS / "index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    book = (DOCS / "book" / "index.md").read_text()
    for page in PAGES:
        name = str(page.relative_to(DOCS))
        assert f" {name}" in site
        if page.parent.name == "book" and page.stem != "index":
            assert f"({page.name})" in book
        else:
            assert name == "index.md" or f"({name})" in index
    assert set(GUIDES) <= {page.stem for page in PAGES}


def test_examples_are_read():
    examples = ROOT / "examples"
    assert load_sweep(examples / "sweep.yaml").count == 24
    for name in ("frontier.yaml", "defenses.yaml"):
        assert load_frontier(examples / name, {}).attacks
    for path in examples.glob("*.py"):
        ast.parse(path.read_text())


def test_examples_for_pipelines_are_right():
    """Their commands are ours with options that exist, on the settings that lie beside them."""
    ci = ROOT / "examples" / "ci"
    assert load_spec(ci / "audit.yaml", {}).redact
    workflow = yaml.safe_load((ci / "github-workflow.yml").read_text())
    steps = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    (repo,) = yaml.safe_load((ci / "pre-commit-config.yaml").read_text())["repos"]
    steps += [shlex.split(hook["entry"])[2].replace(" && ", "\n") for hook in repo["hooks"]]
    found = [words for step in steps for words in commands(step)]
    for words in found:
        check(words)
    assert {"audit", "verdict"} <= {words[1] for words in found}
    assert sum("--fail-on" in words for words in found) == 2


@pytest.mark.parametrize("page", ["sweeps", "scale"])
def test_sweeps_on_pages_are_sweeps(page):
    (text,) = (block.text for block in blocks(DOCS / f"{page}.md") if block.language == "yaml")
    said = re.search(r"= ([\d,]+) cells", text)
    assert SweepSpec.model_validate(yaml.safe_load(text)).count == int(said[1].replace(",", ""))


def test_the_package_on_the_page_has_what_it_declares(tmp_path, monkeypatch):
    """Every entry point of the page's pyproject.toml names a thing of the right kind in the page's own files."""
    written = {block.title: block.text for block in blocks(DOCS / "extend.md") if block.title}
    for name in written:
        (tmp_path / name).write_text(written[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    registries = {r.group: r for r in (ATTACKS, IMAGE_ATTACKS, DEFENSES, METRICS, FAMILIES, MODALITIES)}
    project = tomllib.loads(written["pyproject.toml"])["project"]
    assert len(project["entry-points"]) == 3
    for group, points in project["entry-points"].items():
        for name, place in points.items():
            entry = registries[group].get(place)
            assert getattr(entry, "name", name) in (name, place)
    assert set(registries) == ENTRY_POINTS


def test_the_page_of_settings_is_that_of_the_fields():
    """Whoever adds a setting runs `python docs/make_settings.py`."""
    spec = importlib.util.spec_from_file_location("make_settings", DOCS / "make_settings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page()
