"""What was read back of images: the private ones beside the recovered ones, on the page only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from gradleak.audits.results import Results
from gradleak.data.png import PREFIX
from gradleak.scoring.metrics import figure, labels_of
from gradleak.verdict.attempts import cells_of


@dataclass(frozen=True)
class Picture:
    """A private image and what became of it; the addresses are empty where there is nothing to show."""

    trial: int
    truth: str
    recovered: str
    caption: str


def gallery_values(results: Sequence[Results], varying: Sequence[str]) -> dict[str, Any]:
    """What the page of images shows beside what all pages do: the pictures of every audit under its name."""
    return {
        "galleries": [
            (", ".join(getattr(cell, name) for name in varying), _pictures(cell.results))
            for cell in cells_of(results)
        ],
        "script": None,
        "control_guess": " or ".join(dict.fromkeys(map(control_guess, results))),
    }


def no_table(results: Results, limit: int | None = None) -> None:
    """Pictures cannot be shown in a terminal."""


def control_guess(results: Results) -> str:
    """What the control shows: without auxiliary images there is no mean of them."""
    return "the mean auxiliary image" if results.scenario.auxiliary else "a plain grey image"


def image_html(truth: str, recovered: str | None) -> Markup:
    """A recovered image; of None the true one."""
    address = own_image(truth if recovered is None else recovered)
    name = "private image" if recovered is None else "recovered image"
    return Markup('<img src="{}" alt="{}">').format(address, name) if address else Markup("")


def own_image(address: str) -> str:
    """The address if it is one of our own images; nothing else may stand in a page."""
    return address if address.startswith(PREFIX) else ""


def _pictures(results: Results) -> list[Picture]:
    return [
        Picture(
            trial.index + 1,
            own_image(pair.truth),
            own_image(pair.reconstruction),
            " · ".join(
                [
                    str(trial.index + 1),
                    *(f"{label} {figure(name, pair.scores[name])}" for name, label in labels_of(pair.scores).items()),
                    *(["✓ certified"] if pair.certified else []),
                    *([] if trial.status == "completed" else [f"⚠ {trial.status}"]),
                ]
            ),
        )
        for trial in results.trials
        for pair in trial.pairs
    ]
