"""The contract that makes every figure honest: attacks see the update and nothing of the truth."""

import json
import subprocess
import sys

import pytest
from source import Import, imports, imports_of, modules, reached

# The honest side, which knows the truth, and all that judges by it.
FORBIDDEN = (
    "gradleak.clients", "gradleak.training", "gradleak.data.draws", "gradleak.scoring", "gradleak.audits",
    "gradleak.experiments", "gradleak.verdict", "gradleak.report", "gradleak.cli", "gradleak.bench",
)  # fmt: skip
ATTACKS = [module for module in modules() if Import(module).of("gradleak.attacks")]


def breaches(found: set[Import] | frozenset[Import]) -> set[str]:
    """Imports of the honest side, and of the root package, which hands out all public names."""
    known = modules()
    root = {each.name for each in found if each.name.rpartition(".")[0] == "gradleak" and each.name not in known}
    return root | {each.name for each in found for package in FORBIDDEN if each.of(package)}


def test_no_attack_imports_the_honest_side():
    assert {"gradleak.attacks.film.attack", "gradleak.attacks.images.ig", "gradleak.attacks.run"} <= set(ATTACKS)
    assert {module: breaches(imports_of(module)) for module in ATTACKS if breaches(imports_of(module))} == {}


def test_not_even_by_imports_of_imports():
    ways = reached(ATTACKS)
    assert {"gradleak.matching.engine", "gradleak.models.image", "gradleak.priors.causal"} <= set(ways)
    found = {" > ".join(way): breaches(imports_of(module)) for module, way in ways.items()}
    assert {way: names for way, names in found.items() if names} == {}


def test_not_even_in_a_fresh_interpreter():
    """All attacks on text and images, all that they are made of, and the priors: no module of the honest side."""
    code = f"""
import importlib, json, sys
from gradleak.attacks import ATTACKS, IMAGE_ATTACKS
loaded = [attacks.get(name).name for attacks in (ATTACKS, IMAGE_ATTACKS) for name in attacks.names()]
for module in {[*ATTACKS, "gradleak.priors.ngram", "gradleak.priors.causal"]!r}:
    importlib.import_module(module)
print(json.dumps([loaded, sorted(name for name in sys.modules if name.startswith("gradleak"))]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    attacks, loaded = json.loads(done.stdout)
    assert {"auto", "lamp-cos", "lti", "ig", "gi-gip"} <= set(attacks)
    assert [name for name in loaded for package in FORBIDDEN if Import(name).of(package)] == []


@pytest.mark.parametrize("package", ["gradleak.attacks", "gradleak.attacks.images"])
@pytest.mark.parametrize(
    "line",
    [
        "from gradleak.clients.text import Client",
        "from gradleak.clients.images import ImageClient",
        "import gradleak.scoring.text",
        "import gradleak.scoring.score_images as judge",
        "from gradleak.scoring.metrics import pixels",
        "from gradleak import clients",
        "from gradleak import *",
        "import gradleak",
        "import gradleak as honest",
        "from gradleak import ImageClient",
        "from gradleak.data import draws",
        "from gradleak.data.draws import draw",
        "from gradleak.training.learner import Learner",
        "from gradleak.audits.images import draw",
        "def f():\n    from gradleak.scoring.score import score",
        "class A:\n    def run(self):\n        import gradleak.audits.run",
        "if TYPE_CHECKING:\n    from gradleak.clients.text import Client",
        "try:\n    from gradleak.verdict import judge\nexcept ImportError:\n    pass",
        "importlib.import_module('gradleak.clients.images')",
        "ATTACKS = {'sly': 'gradleak.scoring.score:score'}",
    ],
)
def test_the_check_notices(line, package):
    assert breaches(imports(line, package))


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("from ..scoring import score", "gradleak.attacks"),
        ("from ...scoring import score_images", "gradleak.attacks.images"),
        ("from ... import clients", "gradleak.attacks.images"),
    ],
)
def test_the_check_notices_relative_imports(line, package):
    assert breaches(imports(line, package))


@pytest.mark.parametrize(
    "line",
    [
        "from gradleak.data.pictures import Pictures",
        "from gradleak.updates.client_rule import ClientRule",
        "from gradleak.version import __version__",
        "from gradleak import matching",
        "import torch",
        "'gradleak.clients makes updates'",
    ],
)
def test_the_check_lets_the_attackers_side_pass(line):
    assert not breaches(imports(line, "gradleak.attacks"))


def test_the_way_to_a_breach_is_shown():
    """Imports of imports are followed, through functions and registries too."""
    ways = reached(["gradleak.cli.audits"])
    assert "gradleak.scoring.score" in ways
    assert ways["gradleak.scoring.score"][0] == "gradleak.cli.audits"
    assert "gradleak.attacks.images.ig" in reached(["gradleak.attacks"])
