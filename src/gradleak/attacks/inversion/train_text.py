"""Training a text inverter from start to end, and writing it."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradleak.attacks.inversion.auxiliary import gather_auxiliary
from gradleak.attacks.inversion.networks import NetworkSettings
from gradleak.attacks.inversion.saved import InverterManifest, save_inverter
from gradleak.attacks.inversion.text_problem import TextProblem
from gradleak.attacks.inversion.text_reader import PASSES
from gradleak.attacks.inversion.training import TrainSettings, train
from gradleak.core import assets
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder
from gradleak.core.parameters import validated
from gradleak.core.progress import SILENT, Progress
from gradleak.data.texts import read_data
from gradleak.defenses import parse_defenses
from gradleak.models.text import TextModel, refuse_pairs

# The corpus that is an asset, under the name by which it can be asked for.
CORPUS = "wikitext2"
# Most bins of hashed features by default: as many as for the published target.
MOST_BINS = 110_000


def train_inverter(
    model: TextModel,
    out: str | Path,
    *,
    aux: str | Path | Sequence[str] = CORPUS,
    pseudo: bool = True,
    size: int | None = None,
    other: str | Path | Sequence[str] = (),
    share: float = 1.0,
    defenses: Sequence[str] = (),
    network: NetworkSettings | None = None,
    settings: TrainSettings | None = None,
    budget: Budget | str | float | None = None,
    progress: Progress = SILENT,
) -> tuple[InverterManifest, float]:
    """Train a network to read the texts of this model's updates, and write it into a folder.

    `aux` are texts like the victims': a file, texts, or "wikitext2". With `pseudo` (LTI-P) only how often each token
    occurs in them is used; without (LTI) the sequences themselves. `size` sequences are taken, of which only `share`
    are from `aux` if there is another corpus. Returns the manifest and the share of held-out tokens read right.
    """
    refuse_pairs(model, "lti")
    network, settings = network or usual_network(model), settings or TrainSettings()
    least = len(model.prefix) + len(model.suffix) + 1
    if not least <= network.length <= model.max_length:
        raise GradleakError(
            f"sequences for {model.name} have {least} to {model.max_length} tokens, including special tokens, "
            f"not {network.length}"
        )
    if not model.goal.label_choices(model):
        raise GradleakError(f"an inverter learns from classes or from plain text; {model.name} is for {model.task}")
    chain = parse_defenses(defenses)
    with output_folder(out) as folder:
        auxiliary = gather_auxiliary(
            texts_of(aux, progress), model, length=network.length, size=size, pseudo=pseudo,
            other=texts_of(other, progress), share=share, seed=settings.seed, progress=progress,
        )  # fmt: skip
        problem = TextProblem(model, auxiliary, chain, network, settings.seed)
        training = train(problem, settings, folder, Budget.of(budget), progress)
        manifest = InverterManifest(
            kind="text",
            model=model.name,
            model_fingerprint=model.fingerprint,
            defenses=tuple(map(str, chain)),
            tensors=problem.shapes,
            network=network.model_dump(),
            auxiliary=_described(aux, pseudo, len(auxiliary.sequences), other, share),
            settings=settings,
            training=training,
        )
        save_inverter(folder, problem.network.state_dict(), manifest)
        return manifest, problem.accuracy(PASSES)


def usual_network(model: TextModel, **given: Any) -> NetworkSettings:
    """The better features for a target: by positions for language models with a position embedding, else hashed.

    A tenth of a large model's coordinates would be too many bins for the network after them.
    """
    by_position = model.adapter.positions is not None and model.goal.autoregressive
    coordinates = sum(parameter.numel() for parameter in model.parameters().values())
    usual: dict[str, Any] = {
        "features": "structured" if by_position else "hashed",
        "share": min(0.1, MOST_BINS / coordinates),
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return validated(NetworkSettings, usual | chosen, "network")


def texts_of(source: str | Path | Sequence[str], progress: Progress = SILENT) -> list[str]:
    """Texts of a file, of the corpus that is an asset, or as given."""
    if isinstance(source, str) and source == CORPUS:
        packed = (assets.pull(CORPUS, progress) / "train.raw.gz").read_bytes()
        lines = gzip.decompress(packed).decode("utf-8").splitlines()
        return [line.strip() for line in lines if line.strip()]
    return [row.text for row in read_data(source)] if isinstance(source, str | Path) else list(source)


def _described(aux: object, pseudo: bool, sequences: int, other: object, share: float) -> dict[str, Any]:
    given = {"aux": str(aux) if isinstance(aux, str | Path) else "given in Python", "pseudo": pseudo}
    mixed = {"other": str(other), "share": share} if isinstance(other, str | Path) else {}
    return {**given, "sequences": sequences, **mixed}
