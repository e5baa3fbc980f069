"""Public corpora by name, found in a folder under the file names they are commonly kept in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest
from gradleak.data.texts import Row, read_data


@dataclass(frozen=True)
class _Table:
    """A corpus in one table, under one of several file names."""

    files: tuple[str, ...]
    text: str | None
    label: str | None

    def read(self, name: str, folder: Path) -> list[Row]:
        place = _first(name, folder, self.files)
        return read_data(place, self.text, self.label)


@dataclass(frozen=True)
class _ClassFiles:
    """A corpus with a plain text file a class."""

    classes: tuple[tuple[str, ...], ...]

    def read(self, name: str, folder: Path) -> list[Row]:
        rows = []
        for label, files in enumerate(self.classes):
            rows += [Row(row.text, label) for row in read_data(_first(name, folder, files))]
        return rows


@dataclass(frozen=True)
class _JsonList:
    """A corpus as one JSON list of texts."""

    files: tuple[str, ...]

    def read(self, name: str, folder: Path) -> list[Row]:
        place = _first(name, folder, self.files)
        try:
            texts = json.loads(place.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise GradleakError(f"{place} is not a JSON file") from error
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise GradleakError(f"{place} is not a list of texts")
        return [Row(text) for text in texts]


DATASETS: dict[str, _Table | _ClassFiles | _JsonList] = {
    "cola": _Table(("cola_train.tsv", "CoLA/train.tsv", "cola/train.tsv", "in_domain_train.tsv"), "4", "2"),
    "enron": _JsonList(("enron_sentences.json",)),
    "wikitext2_test": _Table(("wikitext2_test.txt", "wiki.test.tokens"), None, None),
    "wikitext2_valid": _Table(("wikitext2_valid.txt", "wiki.valid.tokens"), None, None),
    "wikitext103": _Table(("wikitext103_sentences.txt",), None, None),
    "sst2": _Table(("sst2_train.tsv", "SST-2/train.tsv", "sst2/train.tsv"), "sentence", "label"),
    "rotten_tomatoes": _ClassFiles(
        (("rt_polarity_neg.txt", "rt-polarity.neg.txt"), ("rt_polarity_pos.txt", "rt-polarity.pos.txt"))
    ),
}


# Images, as .npz files that `read_pictures` takes.
IMAGE_DATASETS = {
    "cifar10": ("cifar10.npz", "cifar10_3000_1000.npz"),
    "mnist": ("mnist.npz", "mnist_subset_5000_1000.npz"),
}


def image_dataset(name: str, folder: Path) -> Path:
    """The file of a set of images."""
    if name not in IMAGE_DATASETS:
        raise GradleakError(f"unknown images {name!r}; {suggest(name, IMAGE_DATASETS)}")
    return _first(name, folder, IMAGE_DATASETS[name])


def read_dataset(name: str, folder: Path) -> list[Row]:
    """All rows of a corpus, from the files in a folder."""
    if name not in DATASETS:
        raise GradleakError(f"unknown dataset {name!r}; {suggest(name, DATASETS)}")
    return DATASETS[name].read(name, folder)


def _first(name: str, folder: Path, files: tuple[str, ...]) -> Path:
    for file in files:
        if (folder / file).is_file():
            return folder / file
    raise GradleakError(f"{folder} holds no file of {name}; looked for {', '.join(files)}")
