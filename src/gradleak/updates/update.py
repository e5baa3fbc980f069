"""The update: all that leaves a client, and all that an attack may read.

An update is named tensors plus a manifest. The manifest says what the threat model grants the attacker
beside the tensors (labels, lengths, batch size) and which client rule made them. On disk it is a folder
with `update.safetensors` and `manifest.json`. Reading treats both as hostile input.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder, replacing, write_text
from gradleak.core.parameters import split_parameters, validated
from gradleak.models.base import Target
from gradleak.models.tasks import TargetTask
from gradleak.version import __version__

TENSORS, MANIFEST = "update.safetensors", "manifest.json"

MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 50_000
MAX_MANIFEST_BYTES = 4 << 20
_SIZES = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}

# What a threat model can grant beside the tensors.
GRANTS = ("batch_size", "labels", "lengths")
Grant = Literal["batch_size", "labels", "lengths"]


class Known(BaseModel):
    """What the attacker is told beside the tensors; None is "not told"."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch_size: int | None = Field(default=None, ge=1, le=100_000)
    labels: tuple[int, ...] | None = None
    lengths: tuple[int, ...] | None = Field(
        default=None, description="tokens of each sentence, special tokens counted"
    )

    @property
    def size(self) -> int | None:
        """How many sentences there are, as far as any grant tells."""
        return self.batch_size or len(self.lengths or self.labels or ()) or None

    @property
    def granted(self) -> tuple[str, ...]:
        return tuple(name for name in GRANTS if getattr(self, name) is not None)


class ClientRule(BaseModel):
    """How the client turned its data into the update; the server sets these, so the attacker knows them.

    fedsgd sends the gradient of the mean loss over the batch. fedavg takes steps of plain SGD over the batch in
    mini-batches, in order, and sends the weights: the update is the weights before minus the weights after.

    >>> str(ClientRule.parse("fedavg:epochs=2,lr=1e-4"))
    'fedavg:epochs=2,batch=1,lr=0.0001'
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["fedsgd", "fedavg"] = "fedsgd"
    mode: Literal["eval", "train"] = Field("eval", description="train: dropout is on")
    epochs: int = Field(1, ge=1, le=10_000, description="passes over the batch (fedavg)")
    batch: int = Field(1, ge=1, le=100_000, description="sentences of one local step (fedavg)")
    lr: float = Field(5e-5, gt=0, le=10, description="step size of local SGD (fedavg)")

    @model_validator(mode="after")
    def _local_only(self) -> ClientRule:
        local = self.model_fields_set & {"epochs", "batch", "lr"}
        if self.name == "fedsgd" and any(getattr(self, n) != ClientRule.model_fields[n].default for n in local):
            raise ValueError("epochs, batch and lr belong to fedavg")
        return self

    @classmethod
    def parse(cls, spec: str) -> ClientRule:
        """The rule of a text such as `fedavg:epochs=1,batch=1,lr=5e-5` or `fedsgd:mode=train`."""
        name, values = split_parameters(spec, modules=False)
        return validated(cls, {"name": name, **values}, f"client {name!r}")

    def steps(self, sentences: int) -> int:
        """Local steps over so many sentences."""
        return self.epochs * math.ceil(sentences / self.batch) if self.name == "fedavg" else 1

    def __str__(self) -> str:
        values = [f"epochs={self.epochs}", f"batch={self.batch}", f"lr={self.lr:g}"] if self.name == "fedavg" else []
        values += ["mode=train"] if self.mode == "train" else []
        return f"{self.name}:{','.join(values)}" if values else self.name


def _printable(note: str) -> str:
    """Notes are shown in terminals, so they must not be able to steer one."""
    if not note.isprintable():
        raise ValueError("a note holds characters that cannot be printed")
    return note


class Manifest(BaseModel):
    """Everything in the update folder that is not a tensor."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    schema_version: Literal[1] = 1
    written_by: str = f"gradleak {__version__}"
    task: TargetTask
    family: str
    model_fingerprint: str | None = Field(default=None, description="hash of the global weights; null if unknown")
    client: ClientRule = ClientRule()
    defenses: tuple[str, ...] = Field(default=(), description="what was done to the tensors, in order")
    known: Known = Known()
    clients: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        description="of how many clients the tensors are the mean; 1: a client's own",
    )
    notes: tuple[Annotated[str, Field(max_length=400), AfterValidator(_printable)], ...] = Field(
        default=(), max_length=50, description="what the tensors are only roughly, in words"
    )

    def provenance(self) -> list[str]:
        """What an attacker should know of where the tensors come from, beyond one client's plain update.

        >>> Manifest(task="causal-lm", family="gpt2", clients=3).provenance()
        ["The update is the mean of 3 clients' updates; it is attacked as one batch of all their sentences."]
        """
        lines = [f"The manifest notes: {note}." for note in self.notes]
        if self.clients > 1:
            mean = f"The update is the mean of {self.clients} clients' updates"
            lines.insert(0, f"{mean}; it is attacked as one batch of all their sentences.")
        return lines


@dataclass(frozen=True)
class Update:
    """What an attacker holds: tensors by parameter name, and the manifest."""

    tensors: Mapping[str, Tensor]
    manifest: Manifest

    @property
    def known(self) -> Known:
        return self.manifest.known

    @property
    def local_steps(self) -> int:
        """How many steps each client took; of an aggregate's sentences each is taken to have an equal share."""
        rule, clients = self.manifest.client, self.manifest.clients
        return rule.steps(math.ceil(self.known.size / clients) if self.known.size else rule.batch)

    def save(self, folder: str | Path) -> Path:
        """Write the update folder; the tensors appear in one step, the manifest last."""
        from safetensors.torch import save_file

        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        with output_folder(folder) as place:
            with replacing(place / TENSORS) as scratch:
                save_file(plain, str(scratch))
            write_text(place / MANIFEST, self.manifest.model_dump_json(indent=2) + "\n")
        return place

    def check(self, model: Target) -> None:
        """Refuse an update that does not belong to this model, saying how it differs."""
        manifest = self.manifest
        if manifest.task != model.task:
            raise GradleakError(f"the update is of a {manifest.task} model, {model.name} is loaded for {model.task}")
        if manifest.family != model.family:
            raise GradleakError(f"the update is of a {manifest.family} model, {model.name} is a {model.family} model")
        _check_fit({name: tuple(t.shape) for name, t in self.tensors.items()}, model)
        if manifest.model_fingerprint not in (None, model.fingerprint):
            raise GradleakError(
                f"the update was made with other weights than those of {model.name} (fingerprint "
                f"{manifest.model_fingerprint} against {model.fingerprint}); attack it with the model it came from"
            )
        _check_known(manifest.known, model)
        check_finite(self.tensors)


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Refuse NaN and infinities: nothing can be read from them, and a training that has diverged sends them."""
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise GradleakError(f"tensor {_short(name)} holds NaN or infinite values")


def load_update(folder: str | Path, model: Target | None = None) -> Update:
    """Read an update folder, trusting nothing in it; with `model`, also check that it fits.

    >>> import tempfile
    >>> from gradleak import Client, load_model, load_update
    >>> model = load_model("minilm")
    >>> place = Client(model).update(["We moved him to ward six."], [1]).save(tempfile.mkdtemp())
    >>> update = load_update(place, model)
    >>> len(update.tensors), update.known.granted
    (105, ('batch_size',))
    """
    place = Path(folder)
    for name in (MANIFEST, TENSORS):
        if not (place / name).is_file():
            raise GradleakError(f"{place} is not an update folder: it holds no {name}")
    manifest = _read_manifest(place / MANIFEST)
    if model is not None:
        header = read_header(place / TENSORS)
        _check_fit({name: shape for name, (_, shape) in header.items()}, model)
    update = Update(read_tensors(place / TENSORS), manifest)
    if model is not None:
        update.check(model)
    return update


def read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name, dtype and shape of every tensor, with every claim of the header checked before anything is loaded."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little") if len(start) == 8 else -1
        if MAX_HEADER_BYTES < length < 1 << 40:
            raise GradleakError(f"{path}: its header claims {length:,} bytes; {MAX_HEADER_BYTES:,} is the limit")
        if length < 2 or length > size - 8:
            raise GradleakError(f"{path} is not a safetensors file, or it is cut short")
        raw = stream.read(length)
    entries = _parse_header(path, raw)
    if len(entries) > MAX_TENSORS:
        raise GradleakError(f"{path}: its header claims {len(entries):,} tensors; {MAX_TENSORS:,} is the limit")
    described = {name: _describe(path, name, entry) for name, entry in entries.items()}
    expected = sum(_SIZES[dtype] * math.prod(shape) for dtype, shape in described.values())
    if expected != size - 8 - length:
        raise GradleakError(
            f"{path}: its tensors need {expected:,} bytes, the file holds {size - 8 - length:,}; is it cut short?"
        )
    if not described:
        raise GradleakError(f"{path} holds no tensors")
    return described


def _parse_header(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            raise ValueError("a name appears twice")
        return table

    try:
        header = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise GradleakError(f"{path} is not a safetensors file: its header cannot be read") from error
    if not isinstance(header, dict):
        raise GradleakError(f"{path} is not a safetensors file: its header is not a table")
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _describe(path: Path, name: str, entry: object) -> tuple[str, tuple[int, ...]]:
    if not isinstance(entry, dict) or not isinstance(entry.get("shape"), list):
        raise GradleakError(f"{path}: the header entry of tensor {_short(name)} is malformed")
    dtype, shape = entry.get("dtype"), entry["shape"]
    if not isinstance(dtype, str) or dtype not in _SIZES:
        raise GradleakError(f"{path}: tensor {_short(name)} is of type {dtype}, not a floating-point number")
    if len(shape) > 8 or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
        raise GradleakError(f"{path}: tensor {_short(name)} claims the shape {str(shape)[:60]}")
    return str(dtype), tuple(shape)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file as fp32, once its header is in order; NaN and infinities are errors."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    read_header(path)
    try:
        tensors = load_file(str(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise GradleakError(f"{path} cannot be read: {error}") from error
    try:
        check_finite(tensors)
    except GradleakError as error:
        raise GradleakError(f"{path}: {error}") from error
    return {name: tensor.float() for name, tensor in tensors.items()}


def _read_manifest(path: Path) -> Manifest:
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise GradleakError(f"{path} is larger than a manifest can be")
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise GradleakError(f"{path}: {where}: {first['msg']}") from error


def _check_fit(shapes: Mapping[str, tuple[int, ...]], model: Target) -> None:
    parameters = model.parameters()
    strange = [name for name in shapes if name not in parameters]
    if strange:
        raise GradleakError(
            f"the update does not fit {model.name}: it holds {_short(strange[0])}"
            f"{_others(strange)}, which the model does not have"
        )
    for name, shape in shapes.items():
        if shape != tuple(parameters[name].shape):
            raise GradleakError(
                f"the update does not fit {model.name}: {name} has shape {list(shape)}, "
                f"the model's has {list(parameters[name].shape)}"
            )


def _check_known(known: Known, model: Target) -> None:
    counts = {len(v) for v in (known.labels, known.lengths) if v is not None}
    if known.batch_size is not None:
        counts.add(known.batch_size)
    if len(counts) > 1:
        raise GradleakError("the manifest grants labels, lengths and a batch size that do not agree in number")
    model.check_known(known)


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")


def _others(names: Iterable[str]) -> str:
    rest = len(list(names)) - 1
    return f" and {rest:,} more" if rest else ""
