"""Weights that come in GGUF form, turned once into a Hugging Face folder in the cache."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import tempfile
from pathlib import Path

import torch

from gradleak.core.assets import cache_folder
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress

NEEDED = ("gguf", "accelerate")


def converted(name: str, file: Path, digest: str, progress: Progress = SILENT) -> Path:
    """The folder of a model in full precision, made from its GGUF file unless it is there already.

    `digest` is the file's hash: other weights get another folder.
    """
    folder = cache_folder() / "converted" / f"{name}-{digest[:12]}"
    if folder.is_dir():
        return folder
    missing = [package for package in NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        raise GradleakError(
            f"{name} must be converted once, which needs {' and '.join(missing)}: pip install 'gradleak[gguf]'"
        )
    progress.begin(f"converting {name} (once, about half a minute)", 1)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{os.getpid()}-"))
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the library's own bar
            _convert(file, scratch)
        scratch.replace(folder)
    except OSError as error:
        if not folder.is_dir():  # unless another process was faster
            raise GradleakError(f"cannot convert {name}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        progress.end()
    return folder


def _convert(file: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # The weights are plain numbers now; a folder that claims otherwise could not be loaded.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
