"""What a result was computed with."""

from __future__ import annotations

import functools
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

from gradleak.version import __version__

_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "scipy",
    "pydantic",
)


class Environment(BaseModel):
    """Versions, machine and code state, recorded with every result."""

    model_config = ConfigDict(extra="forbid")

    gradleak: str
    python: str
    platform: str
    processor: str
    packages: dict[str, str]
    device: str
    threads: int
    git_commit: str | None
    git_dirty: bool | None


def describe(device: torch.device) -> Environment:
    """The environment of this process."""
    commit, dirty = git_state()
    return Environment(
        gradleak=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        processor=_processor(),
        packages=dict(_versions()),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        threads=torch.get_num_threads(),
        git_commit=commit,
        git_dirty=dirty,
    )


# What follows is asked once: it is the state of the code that this process has loaded, and a sweep of quick cells
# would spend much of its time on it.


@functools.cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in _PACKAGES}


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


@functools.cache
def git_state() -> tuple[str | None, bool | None]:
    """Commit of the checkout this package runs from, and whether it was changed; None if it is installed."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None, None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit, bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
