"""Public corpora by name, in a folder under the file names they are commonly kept in: `cola@FOLDER`. Or as assets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.core.reading import read_text
from gradleak.core.registry import suggest
from gradleak.data.cifar import CIFAR10, cifar10_file
from gradleak.data.texts import Row, read_data


@dataclass(frozen=True)
class _Table:
    """A corpus in one table, under one of several file names."""

    files: tuple[str, ...]
    text: str | None
    label: str | None
    words: range | None = None  # only texts of so many words

    def read(self, name: str, folder: Path) -> list[Row]:
        rows = read_data(_first(name, folder, self.files), self.text, self.label)
        return rows if self.words is None else [row for row in rows if len(row.text.split()) in self.words]


@dataclass(frozen=True)
class _ClassFiles:
    """A corpus with one plain text file per class, or the first rows of each."""

    classes: tuple[tuple[int, tuple[str, ...]], ...]
    rows: int | None = None

    def read(self, name: str, folder: Path) -> list[Row]:
        rows = []
        for label, files in self.classes:
            rows += [Row(row.text, label) for row in read_data(_first(name, folder, files))[: self.rows]]
        return rows


@dataclass(frozen=True)
class _JsonList:
    """A corpus as one JSON list of texts."""

    files: tuple[str, ...]

    def read(self, name: str, folder: Path) -> list[Row]:
        place = _first(name, folder, self.files)
        try:
            texts = json.loads(read_text(place))
        except (ValueError, RecursionError) as error:
            raise GradleakError(f"{place} is not a JSON file") from error
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise GradleakError(f"{place} is not a list of texts")
        return [Row(text) for text in texts]


_SST2 = ("sst2_train.tsv", "SST-2/train.tsv", "sst2/train.tsv")
_NEGATIVE = (0, ("rt_polarity_neg.txt", "rt-polarity.neg.txt"))
_POSITIVE = (1, ("rt_polarity_pos.txt", "rt-polarity.pos.txt"))

DATASETS: dict[str, _Table | _ClassFiles | _JsonList] = {
    "cola": _Table(("cola_train.tsv", "CoLA/train.tsv", "cola/train.tsv", "in_domain_train.tsv"), "4", "2"),
    "enron": _JsonList(("enron_sentences.json",)),
    "wikitext2_test": _Table(("wikitext2_test.txt", "wiki.test.tokens"), None, None),
    "wikitext2_valid": _Table(("wikitext2_valid.txt", "wiki.valid.tokens"), None, None),
    "wikitext103": _Table(("wikitext103_sentences.txt",), None, None),
    "sst2": _Table(_SST2, "sentence", "label"),
    # Most of its rows are phrases of a few words; these are about as long as its whole sentences.
    "sst2_sentences": _Table(_SST2, "sentence", "label", words=range(18, 23)),
    "rotten_tomatoes": _ClassFiles((_NEGATIVE, _POSITIVE)),
    # The train split of the Hugging Face hub, row by row, which published rules of drawing count in.
    "rotten_tomatoes_train": _ClassFiles((_POSITIVE, _NEGATIVE), rows=4265),
}


# Images, as .npz files that `read_pictures` takes.
IMAGE_DATASETS = {
    "cifar10": ("cifar10.npz", "cifar10_3000_1000.npz"),
    "mnist": ("mnist.npz", "mnist_subset_5000_1000.npz"),
}


def read_rows(source: str | Path, text_column: str | None = None, label_column: str | None = None) -> list[Row]:
    """Rows of a data file, of the built-in corpus, or of a public corpus in a folder, written `cola@FOLDER`."""
    name, folder = _named(source)
    if folder is None:
        return read_data(source, text_column, label_column)
    if name not in DATASETS:
        raise GradleakError(f"unknown corpus {name!r}; {suggest(name, DATASETS)}")
    if text_column or label_column:
        raise GradleakError(f"{source} knows its columns; leave out the text and label columns")
    return DATASETS[name].read(name, folder)


def image_file(source: str | Path, progress: Progress = SILENT) -> Path:
    """The file of a set of images: a path, a public set in a folder, as `cifar10@FOLDER`, or the asset `cifar10`.

    The asset is fetched if it is not in the cache; a file of that name comes first.
    """
    name, folder = _named(source)
    if str(source) == CIFAR10 and not Path(source).exists():
        return cifar10_file(progress)
    if folder is None:
        return Path(source)
    if name not in IMAGE_DATASETS:
        raise GradleakError(f"unknown images {name!r}; {suggest(name, IMAGE_DATASETS)}")
    return _first(name, folder, IMAGE_DATASETS[name])


def in_folder(name: str, folder: Path) -> str:
    """A public set in a folder, as `--data` takes it; the asset of that name if the folder holds none of its files.

    >>> in_folder("cola", Path("data")), in_folder("cifar10", Path("no-such-folder"))
    ('cola@data', 'cifar10')
    """
    held = name != CIFAR10 or any((folder / file).is_file() for file in IMAGE_DATASETS[name])
    return f"{name}@{folder}" if held else name


def _named(source: str | Path) -> tuple[str, Path | None]:
    """The name and the folder of a corpus; no folder for a file."""
    name, at, folder = str(source).partition("@")
    is_corpus = at and (name.isidentifier() and not Path(source).exists())
    return name, Path(folder or ".") if is_corpus else None


def _first(name: str, folder: Path, files: tuple[str, ...]) -> Path:
    for file in files:
        if (folder / file).is_file():
            return folder / file
    raise GradleakError(f"{folder} holds no file of {name}; looked for {', '.join(files)}")
