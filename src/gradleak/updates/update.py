"""The update: all that leaves a client, and all that an attack may read.

An update is named tensors plus a manifest. The manifest says what the attacker knows beside the tensors (labels,
lengths, batch size) and which client rule made them. On disk it is a folder with `update.safetensors` and
`manifest.json`. Reading treats both as hostile input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.files import fill_tensors, fill_text, output_folder, replacing
from gradleak.core.tensor_files import check_finite, open_tensors, quoted, read_header
from gradleak.models.base import Target
from gradleak.updates.manifest import Known, Manifest, read_manifest
from gradleak.updates.plausible import check_made

TENSORS, MANIFEST = "update.safetensors", "manifest.json"
MADE_WITH = "; name the model that the update was made with (--model)"


@dataclass(frozen=True)
class Update:
    """What an attacker holds: tensors by parameter name, and the manifest.

    The tensors of a large update lie in a file and are read when they are asked for.
    """

    tensors: Mapping[str, Tensor]
    manifest: Manifest

    @property
    def known(self) -> Known:
        return self.manifest.known

    @property
    def local_steps(self) -> int:
        """How many steps each client took."""
        return self.manifest.client.count_steps(self.sentences_per_client)

    @property
    def sentences_per_client(self) -> int:
        """How many sentences each client trained on: equal shares of an aggregate's, one mini-batch if not known."""
        rule, clients = self.manifest.client, self.manifest.clients
        return math.ceil(self.known.size / clients) if self.known.size else rule.batch

    def save(self, folder: str | Path) -> Path:
        """Write the update folder: both files, the manifest last, or neither."""
        with (
            output_folder(folder) as place,
            replacing(place / MANIFEST) as manifest,
            replacing(place / TENSORS) as tensors,
        ):
            fill_tensors(tensors, self.tensors)
            fill_text(manifest, self.manifest.model_dump_json(indent=2) + "\n")
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


def load_update(folder: str | Path, model: Target | None = None) -> Update:
    """Read an update folder, trusting nothing in it; with `model`, also check that it fits.

    >>> import tempfile
    >>> from gradleak import Client, load_model, load_update
    >>> model = load_model("minilm")
    >>> place = Client(model).update(["We moved him to ward six."], [1]).save(tempfile.mkdtemp())
    >>> update = load_update(place, model)
    >>> len(update.tensors), update.known.names
    (105, ('batch_size',))
    """
    place = Path(folder)
    for name in (MANIFEST, TENSORS):
        if not (place / name).is_file():
            raise GradleakError(f"{place} is not an update folder: it holds no {name}{_below(place)}")
    manifest = read_manifest(place / MANIFEST)
    if model is not None:
        header = read_header(place / TENSORS)
        _check_fit({name: shape for name, (_, shape) in header.items()}, model)
    update = Update(open_tensors(place / TENSORS), manifest)
    if model is not None:
        update.check(model)
        check_made(update.tensors, model.parameters(), manifest)
    return update


def _below(place: Path) -> str:
    """What the folder is instead: a run's, in which update folders lie, or a model's."""
    found = sorted(str(file.parent) for depth in ("*", "*/*") for file in place.glob(f"{depth}/{MANIFEST}"))
    if not found and any((place / name).is_file() for name in ("config.json", "adapter_config.json")):
        return "; it holds a model, and `gradleak convert` makes updates of models before and after training"
    return f"; {found[0]}{_others(found)} below it may be what you mean" if found else ""


def _check_fit(shapes: Mapping[str, tuple[int, ...]], model: Target) -> None:
    parameters = model.parameters()
    unknown = [name for name in shapes if name not in parameters]
    if unknown:
        raise GradleakError(
            f"the update does not fit {model.name}: it holds {quoted(unknown[0])}"
            f"{_others(unknown)}, which the model does not have{MADE_WITH}"
        )
    for name, shape in shapes.items():
        if shape != tuple(parameters[name].shape):
            raise GradleakError(
                f"the update does not fit {model.name}: {name} has shape {list(shape)}, "
                f"the model's has {list(parameters[name].shape)}{MADE_WITH}"
            )


def _check_known(known: Known, model: Target) -> None:
    counts = {len(v) for v in (known.labels, known.lengths) if v is not None}
    if known.batch_size is not None:
        counts.add(known.batch_size)
    if len(counts) > 1:
        raise GradleakError("the manifest's labels, lengths and batch size do not agree in number")
    model.check_known(known)


def _others(names: Iterable[str]) -> str:
    rest = len(list(names)) - 1
    return f" and {rest:,} more" if rest else ""
