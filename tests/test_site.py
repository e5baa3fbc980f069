"""The site: the Python interface is listed whole, the notebook runs, and its page is made as the hook says."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest
import yaml
from docs_pages import DOCS, ROOT

import gradleak


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NOTEBOOK = json.loads((DOCS / "tutorial.ipynb").read_text())


def test_every_public_name_is_on_one_page_of_the_interface():
    listed = [
        name
        for page in (DOCS / "api").glob("*.md")
        for name in re.findall(r"^::: gradleak\.(\w+)$", page.read_text(), re.M)
    ]
    assert sorted(listed) == sorted(set(gradleak.__all__) - {"__version__"})


@pytest.mark.parametrize("name", sorted(set(gradleak.__all__) - {"__version__"}))
def test_every_public_name_is_described(name):
    """What is not would be an empty place on the page."""
    own = getattr(gradleak, name).__doc__
    assert own
    assert len(own.split()) >= 3


@pytest.mark.usefixtures("minilm")
def test_the_notebook_runs(tmp_path):
    printed = loaded("run_tutorial").run(NOTEBOOK, str(tmp_path))
    assert printed[1].count("certified") == 2
    assert printed[2].startswith("Critical: auto read back 6 of 6 sentences whole")
    assert "defence sign: " in printed[3]
    assert "none: critical" in printed[4]
    assert (tmp_path / "out" / "annex.md").is_file()
    assert "Rosa" not in (tmp_path / "out" / "report.html").read_text()


def test_the_notebook_is_kept_with_what_it_printed():
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all("/home" not in json.dumps(cell) and "/tmp" not in json.dumps(cell) for cell in cells)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])


def test_the_gallery_has_its_pages():
    for target in re.findall(r"\]\((gallery/[\w-]+\.html)\)", (DOCS / "gallery.md").read_text()):
        page = (DOCS / target).read_text()
        assert "Content-Security-Policy" in page
        assert len(page) < 200_000


def test_the_version_is_the_same_wherever_it_stands():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == gradleak.__version__


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_workflows_and_templates_are_yaml_whose_targets_exist(path):
    text = path.read_text()
    assert isinstance(yaml.safe_load(text), dict)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"run: make ([\w-]+)", text)) <= targets
