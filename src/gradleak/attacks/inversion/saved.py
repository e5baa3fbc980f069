"""A trained inverter on disk: `inverter.safetensors` with its weights and `manifest.json` with what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from gradleak.attacks.inversion.training import Training, TrainSettings
from gradleak.core.errors import GradleakError
from gradleak.core.files import fill_tensors, fill_text, output_folder, replacing
from gradleak.core.reading import read_model
from gradleak.core.tensor_files import read_header
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.manifest import MAX_MANIFEST_BYTES
from gradleak.updates.update import Update
from gradleak.version import __version__

WEIGHTS, MANIFEST = "inverter.safetensors", "manifest.json"


class InverterManifest(BaseModel):
    """Which updates an inverter was trained for, how it is built, and how its training went."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    schema_version: Literal[1] = 1
    written_by: str = f"gradleak {__version__}"
    kind: Literal["text", "image"]
    model: str = Field(description="the target's name; the fingerprint decides")
    model_fingerprint: str
    client: ClientRule = ClientRule()
    defenses: tuple[str, ...] = ()
    tensors: dict[str, tuple[int, ...]] = Field(description="names and shapes of the tensors of an update")
    network: dict[str, Any] = Field(description="what the network and its features are built from")
    auxiliary: dict[str, Any] = Field(default={}, description="what it was trained on")
    settings: TrainSettings
    training: Training

    def refuse_others(self, update: Update) -> None:
        """Refuse an update that this inverter was not trained for, saying how it differs."""
        manifest = update.manifest
        if manifest.model_fingerprint != self.model_fingerprint:
            raise GradleakError(
                f"the inverter was trained for {self.model} (fingerprint {self.model_fingerprint}), this update "
                f"is of other weights ({manifest.model_fingerprint})"
            )
        if manifest.defenses != self.defenses:
            raise GradleakError(
                f"the inverter was trained for updates with {_chain(self.defenses)}, this update has "
                f"{_chain(manifest.defenses)}; train another for that"
            )
        if manifest.client != self.client:
            raise GradleakError(f"the inverter was trained for {self.client}, this update is of {manifest.client}")
        if manifest.known.size not in (None, 1):
            raise GradleakError(f"the inverter reads updates of one example, this update is of {manifest.known.size}")
        shapes = {name: tuple(tensor.shape) for name, tensor in update.tensors.items()}
        if shapes != self.tensors:
            different = sorted(set(shapes.items()) ^ set(self.tensors.items()))[0][0]
            raise GradleakError(f"the inverter was trained for updates with other tensors, for example {different}")


def save_inverter(folder: str | Path, weights: Mapping[str, Tensor], manifest: InverterManifest) -> Path:
    """Write the inverter: both files, the manifest last, or neither."""
    with output_folder(folder) as place, replacing(place / MANIFEST) as text, replacing(place / WEIGHTS) as tensors:
        fill_tensors(tensors, weights)
        fill_text(text, manifest.model_dump_json(indent=2) + "\n")
    return place


def load_inverter(folder: str | Path) -> tuple[InverterManifest, dict[str, Tensor]]:
    """The manifest and the weights of a folder that `save_inverter` wrote, trusting nothing in it."""
    from safetensors.torch import load_file

    place = Path(folder)
    for name in (MANIFEST, WEIGHTS):
        if not (place / name).is_file():
            raise GradleakError(f"{place} is not an inverter's folder: it holds no {name}")
    manifest = read_model(place / MANIFEST, InverterManifest, "an inverter's manifest", MAX_MANIFEST_BYTES)
    read_header(place / WEIGHTS)
    return manifest, load_file(str(place / WEIGHTS))


def _chain(defenses: tuple[str, ...]) -> str:
    return " and ".join(defenses) or "no defence"
