"""Where the cells of a recipe are run: on a model of text with its corpora, or on one of images with theirs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradleak.attacks import ATTACKS
from gradleak.attacks.base import Method
from gradleak.attacks.images import IMAGE_ATTACKS
from gradleak.auditing import audit
from gradleak.budget import Budget
from gradleak.errors import GradleakError
from gradleak.image_auditing import audit_images
from gradleak.models.image import load_image_model
from gradleak.models.lenet import is_image_model
from gradleak.models.load import load_model
from gradleak.models.selection import ALL
from gradleak.progress import Progress
from gradleak.results import Results
from gradleak.scenario.datasets import image_dataset, read_dataset

if TYPE_CHECKING:
    from gradleak.reproducing import Cell


class TextBench:
    """Where cells about text are run: a model, and corpora by name."""

    def __init__(self, model: str, data_dir: Path, progress: Progress) -> None:
        self.model = load_model(model, progress=progress)
        self.layers = len(self.model.adapter.layers)
        self._rows = functools.cache(functools.partial(read_dataset, folder=data_dir))

    def method(self, name: str) -> type[Method]:
        return ATTACKS.get(name)

    def check(self, cell: Cell) -> None:
        """Refuse a cell that cannot be run, before any is."""
        self._rows(cell.data)

    def run(self, cell: Cell, settings: dict[str, Any], budget: Budget, progress: Progress) -> Results:
        return audit(
            self.model, data=self._rows(cell.data), observe=cell.observe, budget=budget, progress=progress,
            **_shared(cell), **settings,
        )  # fmt: skip


class ImageBench:
    """The same for images, which lie in .npz files of the data folder."""

    layers = 0

    def __init__(self, model: str, data_dir: Path) -> None:
        self.model, self._data_dir = load_image_model(model), data_dir

    def method(self, name: str) -> type[Method]:
        return IMAGE_ATTACKS.get(name)

    def check(self, cell: Cell) -> None:
        if cell.observe != ALL:
            raise GradleakError(f"cell {cell.name!r}: of an image model the whole update is seen")
        image_dataset(cell.data, self._data_dir)

    def run(self, cell: Cell, settings: dict[str, Any], budget: Budget, progress: Progress) -> Results:
        place = image_dataset(cell.data, self._data_dir)
        return audit_images(self.model, data=place, budget=budget, progress=progress, **_shared(cell), **settings)


def bench_of(model: str, data_dir: Path, progress: Progress) -> TextBench | ImageBench:
    """Where the cells of a recipe are run, as its model decides."""
    return ImageBench(model, data_dir) if is_image_model(model) else TextBench(model, data_dir, progress)


def _shared(cell: Cell) -> dict[str, Any]:
    return cell.model_dump(include={"attack", "options", "batch_size", "client", "defenses"})
