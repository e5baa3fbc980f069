"""Build wheel and source archive, and try both as a stranger would: `python .ci/dist_check.py`.

Each is installed into an empty environment, in a folder that is not the checkout. What gradleak depends on is not
fetched again: the environments see the packages of the one that runs this, but gradleak itself must be theirs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
# Beside Python, what the package reads when it runs; of every kind some files must be in it.
DATA = ("report/templates/*.html", "report/templates/*.css", "data/*.jsonl", "experiments/recipes/*.yaml", "py.typed")
LARGEST = 8 << 20
TRIES = (
    ["gradleak", "--version"],
    ["gradleak", "attacks"],
    ["gradleak", "threats"],
    ["python", "-m", "gradleak", "ceiling", "--noise", "1.0"],
    [
        "python",
        "-c",
        "import gradleak, pathlib, sys; assert str(pathlib.Path(gradleak.__file__)).startswith(sys.prefix)",
    ],
)


def main() -> None:
    for old in DIST.glob("gradleak-*"):
        old.unlink()
    run([sys.executable, "-m", "hatchling", "build"], ROOT)
    (wheel,), (archive,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    check_wheel(wheel)
    check_archive(archive)
    for package in (wheel, archive):
        with tempfile.TemporaryDirectory() as place:
            try_out(package, Path(place))
        print(f"dist-check: {package.name} ({package.stat().st_size / 1e6:.1f} MB) installs and runs")


def check_wheel(wheel: Path) -> None:
    """All of the package's own files are in it, and nothing else."""
    names = zipfile.ZipFile(wheel).namelist()
    inside = {name.removeprefix("gradleak/") for name in names if name.startswith("gradleak/")}
    source = ROOT / "src" / "gradleak"
    tracked = run(["git", "ls-files", "."], source).split()
    assert inside == set(tracked), sorted(inside ^ set(tracked))[:5]
    for pattern in DATA:
        assert any(Path(name).match(pattern) for name in inside), f"nothing like {pattern} is in the wheel"
    assert wheel.stat().st_size < LARGEST


def check_archive(archive: Path) -> None:
    """What its own tests and documentation need is in it."""
    with tarfile.open(archive) as opened:
        tops = {name.split("/")[1] for name in opened.getnames() if "/" in name}
    wanted = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    )
    assert wanted <= tops, sorted(wanted - tops)
    assert archive.stat().st_size < LARGEST


def try_out(package: Path, place: Path) -> None:
    """Install it into a new environment and run some commands there."""
    home = place / "environment"
    venv.create(home, with_pip=True)
    paths = {
        kind: sysconfig.get_path(kind, "venv", {"base": str(home), "platbase": str(home)})
        for kind in ("purelib", "scripts")
    }
    others = [path for path in sys.path if path.endswith("site-packages")]
    (Path(paths["purelib"]) / "others.pth").write_text("\n".join(others) + "\n")
    scripts = Path(paths["scripts"])
    run(
        [
            str(scripts / "pip"),
            "install",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--force-reinstall",
            str(package),
        ],
        place,
    )
    for words in TRIES:
        run([str(scripts / words[0]), *words[1:]], place)


def run(words: list[str], folder: Path) -> str:
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, env=settings, timeout=300)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


if __name__ == "__main__":
    main()
