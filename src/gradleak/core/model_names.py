"""Whether a name can be that of a model, told without loading anything: the libraries of models take seconds."""

from __future__ import annotations

import difflib
from pathlib import Path

from gradleak.core.errors import GradleakError
from gradleak.core.hub import download_config, reachable
from gradleak.core.registry import suggest

# What `models.load` knows by name; a test holds them together.
BUILT_IN_NAMES = ("minilm", "mpnet", "smollm2", "gemma3-270m", "lenet", "lti", "timm", "torchvision")


def refuse_unknown(name: str) -> None:
    """An error for a name that is not built in, no folder or file, and nothing that the hub has or may have."""
    if name.partition(":")[0].strip() in BUILT_IN_NAMES or _exists(name):
        return
    if _names_a_place(name):
        raise GradleakError(f"there is no model at {name}{_near(Path(name))}")
    if download_config(name) is None:
        raise unknown(name, "the hub does not have it" if reachable() else "the hub cannot be reached")


def unknown(name: str, why: str) -> GradleakError:
    """What is said of a name that leads to no model."""
    return GradleakError(
        f"unknown model {name!r}: not built in, not a folder, and {why}; {suggest(name, BUILT_IN_NAMES)}"
    )


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # no path at all, which is said later
        return True


def _names_a_place(name: str) -> bool:
    """Whether a name is written as a path is; ids of the hub have one slash at most.

    >>> [_names_a_place(name) for name in ("./mine", "a/b/c", "/models/x", "org/name", "minilmm")]
    [True, True, True, False, False]
    """
    return name.startswith((".", "/", "~")) or "\\" in name or name.rstrip("/").count("/") > 1


def _near(place: Path) -> str:
    """The name beside a missing one that it may have been meant for."""
    try:
        beside = [each.name for each in place.parent.iterdir()]
    except OSError:
        return f": there is no folder {place.parent}"
    near = difflib.get_close_matches(place.name, beside, n=1)
    return f"; did you mean {place.parent / near[0]}?" if near else ""
