"""A Hugging Face folder read as hostile input: every claim of it is checked before a model is built."""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.foreign import read_foreign
from gradleak.core.memory import require
from gradleak.core.parameters import validated
from gradleak.core.progress import Progress
from gradleak.core.reading import read_json_table
from gradleak.core.tensor_files import (
    FLOATS,
    OTHERS,
    Header,
    MappedTensors,
    check_finite,
    is_large,
    quoted,
    read_header,
    read_tensors,
)
from gradleak.models.four_bit import FourBit, four_bit, four_bit_names
from gradleak.models.stored import HALF

# In bytes: of config.json, of a list of shards, and of any other text such as a tokenizer's.
MAX_CONFIG, MAX_INDEX, MAX_TEXT = 4 << 20, 64 << 20, 256 << 20
# In the order in which the library looks for them too; each may come in shards.
SINGLE = ("model.safetensors", "pytorch_model.bin")
ADAPTERS = "train adapters on them: --lora, or give the folder of the adapters"
FULL_PRECISION = "save the model in full precision, or audit the one that it was made from"


class ConfigFile(BaseModel):
    """The entries of a config.json that are looked at before the library sees it."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())

    model_type: str
    architectures: list[str] | None = None
    problem_type: str | None = None
    num_labels: int | None = None
    id2label: dict[str, Any] | None = None
    is_encoder_decoder: bool | None = None
    quantization_config: dict[str, Any] | None = None

    @property
    def classes(self) -> int | None:
        """How many classes it says there are; None if it does not."""
        return self.num_labels if self.id2label is None else len(self.id2label)


@dataclass(frozen=True)
class Checkpoint:
    """The configuration and the weight files of a folder."""

    folder: Path
    config: dict[str, Any]
    about: ConfigFile
    files: tuple[Path, ...]

    @property
    def large(self) -> bool:
        """Whether its files are mapped instead of read."""
        return self.files[0].suffix == ".safetensors" and any(map(is_large, self.files))

    @property
    def four_bit(self) -> bool:
        """Whether its matrices are in four bits, by bitsandbytes."""
        return self.about.quantization_config is not None

    def tensors(self, progress: Progress, as_saved: bool = False) -> dict[str, Tensor | FourBit]:
        """All floating-point tensors in fp32; NaN and infinities are errors, and so are weights that are quantised.

        Those of large files are read when they are looked at, if they need not be converted. With `as_saved` they are
        not: they keep the type of the file, and matrices in four bits stay packed.
        """
        parts: Sequence[Mapping[str, Tensor]]
        if self.four_bit:
            return self._packed(as_saved)
        if self.large:
            _check_headers(self.files, as_saved)
            parts = [_mapped(file, as_saved) for file in self.files]
        elif self.files[0].suffix == ".safetensors":
            _check_headers(self.files)
            parts = [read_tensors(file, FLOATS | OTHERS) for file in self.files]
        else:
            parts = read_foreign(self.files, progress)
        whole: dict[str, Tensor | FourBit] = {}
        for file, part in zip(self.files, parts, strict=True):
            twice = next((name for name in part if name in whole), None)
            if twice is not None:
                raise GradleakError(f"{file} holds the tensor {quoted(twice)}, which another weight file holds too")
            whole |= part
        return whole

    def _packed(self, as_saved: bool) -> dict[str, Tensor | FourBit]:
        if not as_saved:
            raise GradleakError(
                f"the weights in {self.folder} are quantised to 4 bits, which cannot be trained; {ADAPTERS}"
            )
        if self.files[0].suffix != ".safetensors":
            raise GradleakError(f"{self.files[0]}: weights in 4 bits are read from safetensors files only")
        return _packed(self.files)


def open_checkpoint(folder: Path) -> Checkpoint:
    """What a folder claims to hold; no weights are read yet."""
    if not (folder / "config.json").exists():
        raise GradleakError(f"the folder {folder} holds no config.json, so it is not a Hugging Face model")
    check_files(folder)
    config = read_json_table(folder / "config.json", MAX_CONFIG)
    about = validated(ConfigFile, config, str(folder / "config.json"))
    if about.quantization_config is not None and not _is_four_bit(about.quantization_config):
        raise GradleakError(f"the weights in {folder} are quantised (quantization_config); {FULL_PRECISION}")
    return Checkpoint(folder, config, about, weight_files(folder, SINGLE))


def check_files(folder: Path) -> None:
    """Refuse pipes and devices, which reading would never come to the end of, and texts too large to be any."""
    for entry in sorted(folder.iterdir()):
        try:
            found = entry.stat()
        except OSError:  # a link that leads nowhere is a file that is not there
            continue
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            raise GradleakError(f"{entry} is a pipe or a device, not a file")
        if entry.suffix in (".json", ".txt", ".model", ".jinja") and found.st_size > MAX_TEXT:
            raise GradleakError(f"{entry} has more than {MAX_TEXT:,} bytes")


def weight_files(folder: Path, names: tuple[str, ...]) -> tuple[Path, ...]:
    """The first of the names that is there, whole or in shards."""
    for name in names:
        single, index = folder / name, folder / f"{name}.index.json"
        if single.is_file():
            return (single,)
        if single.exists():
            raise GradleakError(f"{single} is not a file")
        if index.exists():
            return _shards(index)
    raise GradleakError(f"the folder {folder} holds no weights: neither {' nor '.join(names)}")


def _shards(index: Path) -> tuple[Path, ...]:
    """The files that an index names; they lie beside it, or it is refused."""
    places = read_json_table(index, MAX_INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise GradleakError(f"{index} has no weight_map that says where the tensors are")
    files = []
    kind = Path(index.name.removesuffix(".index.json")).suffix
    for place in dict.fromkeys(str(each) for each in places.values()):
        if Path(place).name != place or not place.endswith(kind):
            raise GradleakError(f"{index} names the weight file {quoted(place)}, which is not one beside it")
        if not (index.parent / place).is_file():
            raise GradleakError(f"{index} names the weight file {quoted(place)}, which is not there")
        files.append(index.parent / place)
    return tuple(files)


def _is_four_bit(settings: Mapping[str, Any]) -> bool:
    """Whether weights were quantised by bitsandbytes to four bits, which can be read."""
    known = settings.get("quant_method", "bitsandbytes") == "bitsandbytes"
    return known and settings.get("load_in_4bit", settings.get("_load_in_4bit")) is True


def _packed(files: tuple[Path, ...]) -> dict[str, Tensor | FourBit]:
    """The matrices in four bits as they are, and the other weights beside them."""
    saved: dict[str, Tensor] = {}
    for file in files:
        saved |= MappedTensors(file, FLOATS | OTHERS).everything()
    states = four_bit_names(saved)
    beside = tuple(f"{name}." for name in states)
    tensors: dict[str, Tensor | FourBit] = {}
    for name, tensor in saved.items():
        if name in states:
            tensors[name] = four_bit(name, states[name], saved)
        elif not name.startswith(beside):
            if not tensor.is_floating_point():
                raise GradleakError(f"{files[0].parent}: tensor {quoted(name)} is quantised; {FULL_PRECISION}")
            check_finite({name: tensor})
            tensors[name] = tensor if tensor.dtype in HALF else tensor.float()
    return tensors


def _mapped(file: Path, as_saved: bool) -> dict[str, Tensor]:
    """The tensors of a large file, each converted by itself unless it can stay as it is."""
    mapped = MappedTensors(file, FLOATS | OTHERS)
    tensors = {}
    for name in mapped:
        own = mapped.as_saved(name)
        try:
            check_finite({name: own})
        except GradleakError as error:
            raise GradleakError(f"{file}: {error}") from error
        tensors[name] = own if as_saved and own.dtype in HALF else own.float()
        mapped.let_go(name)
    return tensors


def _check_headers(files: tuple[Path, ...], as_saved: bool = False) -> None:
    headers = [read_header(file, FLOATS | OTHERS) for file in files]
    for file, header in zip(files, headers, strict=True):
        check_precision(file, header)
    mapped = {"F32", "BF16", "F16"} if as_saved else {"F32"}
    numbers = sum(math.prod(shape) for header in headers for kind, shape in header.values() if kind not in mapped)
    require(
        4 * numbers,
        torch.device("cpu"),
        f"a copy of the weights in {files[0].parent} in fp32",
        "train LoRA alone (--lora), for which they stay on the disk as they were saved, or take a smaller model",
    )


def check_precision(file: Path, header: Header) -> None:
    """Refuse weights that are not floating-point numbers; positions and masks need not be."""
    for name, (dtype, _) in header.items():
        if dtype not in FLOATS and (dtype.startswith(("I8", "F8")) or name.endswith(".weight")):
            raise GradleakError(f"{file}: tensor {quoted(name)} is quantised ({dtype}); {FULL_PRECISION}")
