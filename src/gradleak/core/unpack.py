"""Reads foreign files of tensors in a process of its own, under limits, and writes them as plain safetensors.

A .pt file is a pickle. `weights_only` keeps it from calling what it likes; the limits keep it from taking all memory
or time. `gradleak.core.foreign` starts it: `python -m gradleak.core.unpack TARGET_FOLDER SOURCE...`.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.process_limits import limit

# What the process may take beyond the libraries it runs on, for a file of n bytes: TIMES * n + MORE.
TIMES, MORE = 4, 1 << 30
SECONDS = 600
TOO_LARGE = "it needs more memory than a file of its size should"
# Where training loops put the weights in what they save.
NESTED = ("state_dict", "model_state_dict", "model", "weights", "gradients", "grads")


def unpack(source: Path, target: Path) -> None:
    """Write the floating-point tensors of a .safetensors or .pt file as safetensors, with names or numbered."""
    plain = {}
    for name, tensor in tensors_of(_loaded(source)).items():
        if tensor.is_complex() or tensor.is_quantized or tensor.dtype == torch.int8:
            raise GradleakError(f"{name[:80]!r} is of type {tensor.dtype}")
        if tensor.is_floating_point():  # counters and positions are no parameters
            dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
            # Tied weights share memory, which the format does not have.
            plain[name] = dense.detach().clone(memory_format=torch.contiguous_format)
    if not plain:
        raise GradleakError("it holds no floating-point tensor")
    save_file(plain, str(target))


def _loaded(source: Path) -> object:
    if source.suffix == ".safetensors":
        return load_file(str(source))
    try:
        return torch.load(source, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError) as error:  # torch's own advice is to run whatever the file asks for
        raise GradleakError("it is damaged, or holds more than tensors; save them as .safetensors") from error


def tensors_of(loaded: object) -> dict[str, Tensor]:
    """The tensors by name: of a table, of a table within it, or numbered, of a list.

    >>> list(tensors_of({"epoch": 3, "state_dict": {"bias": torch.zeros(2)}})), list(tensors_of([torch.zeros(2)]))
    (['bias'], ['0'])
    """
    if isinstance(loaded, list | tuple):
        loaded = {str(number): tensor for number, tensor in enumerate(loaded)}
    if not isinstance(loaded, Mapping):
        raise GradleakError(f"it holds a {type(loaded).__name__}, not tensors by name")
    for key in NESTED:
        if isinstance(loaded.get(key), Mapping | list | tuple):
            return tensors_of(loaded[key])
    for name, value in loaded.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise GradleakError(f"its entry {str(name)[:80]!r} is a {type(value).__name__}, not a tensor with a name")
    return dict(loaded)


def main() -> None:
    target, sources = Path(sys.argv[1]), [Path(source) for source in sys.argv[2:]]
    allowed = TIMES * sum(source.stat().st_size for source in sources) + MORE
    limit(allowed, SECONDS, allowed)
    for number, source in enumerate(sources):
        try:
            unpack(source, target / f"{number}.safetensors")
        except MemoryError:
            sys.exit(f"cannot read {source}: {TOO_LARGE}")
        except Exception as error:  # whatever a malformed file provokes is the file's fault, and one line
            text = " ".join(str(error).split())[:200] or type(error).__name__
            sys.exit(f"cannot read {source}: {TOO_LARGE if 'memory' in text and 'alloc' in text else text}")


if __name__ == "__main__":
    main()
