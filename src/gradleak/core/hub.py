"""The Hugging Face hub: whether it answers, asked once and quickly, and the files of a model."""

from __future__ import annotations

import functools
import os
import urllib.error
import urllib.request
from pathlib import Path

from gradleak.core.errors import GradleakError

# What a model is made of; nothing in a folder below, and old weights only where there are no others.
_FILES, _OLD_FILES = ("*.json", "*.txt", "*.model", "model*.safetensors"), ("pytorch_model*.bin",)


@functools.cache
def reachable(timeout: float = 5.0) -> bool:
    """True if the hub answers at all; respects the offline switches and proxy settings of its users."""
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        return False
    from huggingface_hub.constants import ENDPOINT

    try:
        with urllib.request.urlopen(urllib.request.Request(ENDPOINT, method="HEAD"), timeout=timeout):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def download(repository: str) -> Path:
    """The folder that holds a model's files, fetched unless they are there already."""
    try:
        place = _fetch(repository, _FILES)
        return place if any(place.glob("model*.safetensors")) else _fetch(repository, _FILES + _OLD_FILES)
    except Exception as error:  # whatever the library meets on its way
        why = "the hub does not have it" if reachable() else "the hub cannot be reached"
        raise GradleakError(why) from error


def download_config(repository: str) -> Path | None:
    """The folder that holds a model's config.json, which is fetched alone; None if it cannot be had."""
    try:
        return _fetch(repository, ("config.json",))
    except Exception:  # to load the model will fail too, and say why
        return None


def _fetch(repository: str, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download

    place = snapshot_download(
        repository, allow_patterns=list(patterns), ignore_patterns=["*/*"], local_files_only=not reachable()
    )
    return Path(place)
