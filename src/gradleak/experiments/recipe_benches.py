"""Where the cells of a recipe are run: on a model of text with its corpora, or on one of images with theirs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradleak.attacks import ATTACKS
from gradleak.attacks.base import Method
from gradleak.attacks.images import IMAGE_ATTACKS
from gradleak.attacks.inversion.run import train_inverter, usual_network
from gradleak.attacks.inversion.saved import MANIFEST as INVERTER
from gradleak.attacks.inversion.training import STATE_FILE, TrainSettings
from gradleak.audits.image_run import audit_images
from gradleak.audits.results import Results
from gradleak.audits.run import audit
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import Progress
from gradleak.data.corpora import image_dataset, read_dataset
from gradleak.experiments.kept import identity
from gradleak.models.image import ImageModel
from gradleak.models.load import load_model, load_text_model, modality_of
from gradleak.models.selection import ALL

if TYPE_CHECKING:
    from gradleak.experiments.reproduce import Cell


class TextBench:
    """Where cells about text are run: a model, and corpora by name."""

    def __init__(self, model: str, data_dir: Path, progress: Progress) -> None:
        self.model = load_text_model(model, progress=progress)
        self.layers = len(self.model.adapter.layers)
        self._rows = functools.cache(functools.partial(read_dataset, folder=data_dir))

    def method(self, name: str) -> type[Method]:
        return ATTACKS.get(name)

    def check(self, cell: Cell) -> None:
        """Refuse a cell that cannot be run, before any is."""
        self._rows(cell.data)
        if cell.inverter is not None:
            for name in filter(None, (cell.inverter.aux, cell.inverter.other)):
                self._rows(name)

    def run(
        self, cell: Cell, settings: dict[str, Any], folder: Path, budget: Budget, progress: Progress
    ) -> Results | None:
        """The audit of a cell; None if the budget ended the training of what its attack needs."""
        trained = self._with_inverter(cell, folder, budget, progress)
        if trained is None:
            return None
        return audit(
            self.model, data=self._rows(cell.data), observe=cell.observe, budget=budget, progress=progress,
            **_shared(trained), **settings,
        )  # fmt: skip

    def _with_inverter(self, cell: Cell, folder: Path, budget: Budget, progress: Progress) -> Cell | None:
        """The cell with the network its attack needs, trained now or found in the folder."""
        part = cell.inverter
        if part is None:
            return cell
        decides = {**part.model_dump(), "defenses": cell.defenses, "model": self.model.fingerprint}
        place = folder / "inverters" / identity(cell.name, decides)
        if not (place / INVERTER).is_file() or (place / STATE_FILE).is_file():
            manifest, _ = train_inverter(
                self.model, place, aux=self._texts(part.aux), pseudo=part.pseudo, size=part.size,
                other=self._texts(part.other) if part.other else (), share=part.share,
                defenses=cell.defenses, network=usual_network(self.model, **part.network),
                settings=TrainSettings.model_validate(part.training), budget=budget, progress=progress,
            )  # fmt: skip
            if manifest.training.status != "completed":
                return None
        return cell.model_copy(update={"options": {**cell.options, "inverter": str(place)}})

    def _texts(self, name: str) -> list[str]:
        return [row.text for row in self._rows(name)]


class ImageBench:
    """The same for images, which lie in .npz files of the data folder."""

    layers = 0

    def __init__(self, model: str, data_dir: Path) -> None:
        found = load_model(model)
        assert isinstance(found, ImageModel)
        self.model, self._data_dir = found, data_dir

    def method(self, name: str) -> type[Method]:
        return IMAGE_ATTACKS.get(name)

    def check(self, cell: Cell) -> None:
        if cell.observe != ALL or cell.inverter is not None:
            raise GradleakError(f"cell {cell.name!r}: observe and inverter are for text models")
        image_dataset(cell.data, self._data_dir)

    def run(
        self, cell: Cell, settings: dict[str, Any], folder: Path, budget: Budget, progress: Progress
    ) -> Results | None:
        place = image_dataset(cell.data, self._data_dir)
        return audit_images(self.model, data=place, budget=budget, progress=progress, **_shared(cell), **settings)


def bench_of(model: str, data_dir: Path, progress: Progress) -> TextBench | ImageBench:
    """Where the cells of a recipe are run, as its model decides."""
    return ImageBench(model, data_dir) if modality_of(model) == "images" else TextBench(model, data_dir, progress)


def _shared(cell: Cell) -> dict[str, Any]:
    return cell.model_dump(include={"attack", "options", "batch_size", "client", "defenses"})
