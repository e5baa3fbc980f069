"""The contract that makes every figure honest: attacks see the update and nothing of the truth."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gradleak

ATTACKS = Path(gradleak.__file__).parent / "attacks"
FORBIDDEN = ("gradleak.clients", "gradleak.scoring", "gradleak.audits", "gradleak.experiments", "gradleak.data.draws")


def imports(path: Path, package: str) -> set[str]:
    """Every module a file imports, relative imports resolved against its package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *([node.module] if node.module else [])])
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def breaches(path: Path, package: str = "gradleak.attacks") -> set[str]:
    return {name for name in imports(path, package) if name.startswith(FORBIDDEN)}


def test_no_attack_imports_the_honest_side():
    files = sorted(ATTACKS.rglob("*.py"))
    assert len(files) > 8
    for path in files:
        package = ".".join(["gradleak.attacks", *path.relative_to(ATTACKS).parts[:-1]])
        assert not breaches(path, package), path


@pytest.mark.parametrize(
    "line",
    [
        "from gradleak.clients.text import Client",
        "import gradleak.scoring.text",
        "from gradleak import clients",
        "from ..scoring import score",
        "def f():\n    from gradleak.scoring.score import score",
    ],
)
def test_the_check_notices(tmp_path, line):
    (tmp_path / "sly.py").write_text(line)
    assert breaches(tmp_path / "sly.py")


def test_not_even_indirectly():
    """Importing every attack in a fresh interpreter loads nothing of the honest side."""
    code = (
        "import sys\nfrom gradleak.attacks import ATTACKS, IMAGE_ATTACKS\nimport gradleak.attacks.run\n"
        "import gradleak.priors.ngram, gradleak.priors.causal\n"
        "[attacks.get(name) for attacks in (ATTACKS, IMAGE_ATTACKS) for name in attacks.names()]\n"
        f"print([m for m in sys.modules if m.startswith({FORBIDDEN!r})])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
