"""Measured batches drawn at random and attacked again: whether the same comes back.

    python -m gradleak.bench.rerun --data-dir DIR --seed 20261119
    python -m gradleak.bench.rerun --data-dir DIR --seed 20261119 --recipes docs/results

Each file of measurements that a bench wrote batch by batch has a command and, of every batch, its seed and what was
read of it. Batches are drawn from all of these together; one that took too long, or that older code is noted to have
made, is passed over and named. The command is run again for that batch alone. All that does not depend on the machine
must be the same. Files hold how many sentences and tokens came back and how near each is, not their words; where all
came back, every token is in both runs that of the batch, which its seed fixes, so the tokens are the same. With
`--recipes` lines of the papers' tables are drawn instead, each with all its trials.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from gradleak.bench.provenance import ABOUT
from gradleak.core.output import say
from gradleak.core.text import enumerated

# Benches that take the seed of a first batch and a number of batches.
BENCHES = ("adamw", "crowded", "encoders", "local_steps", "lora", "near_rank")
# What depends on the machine and on what else it does.
OF_THE_MACHINE = {"seconds", "processor_seconds", "peak_memory_mb"}


@dataclass(frozen=True)
class Batch:
    """One line of a file of measurements."""

    file: str
    command: str
    noted: bool
    kept: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{self.file}, seed {self.kept['seed']}"

    @property
    def seconds(self) -> float:
        return float(self.kept["seconds"])

    def passed_over(self, longest: float) -> str | None:
        """Why it is not run again; None if it is."""
        if self.noted or "_before" in self.file:
            return "by code that has changed since, as the file notes"
        return f"it took {self.seconds:.0f} s" if self.seconds > longest else None

    def again(self, data: Path, out: Path) -> list[str]:
        """Its command, for it alone, with the files where they lie here."""
        words = shlex.split(self.command)
        words[0] = sys.executable
        words = [str(data / word) if (data / word).is_file() else word for word in words]
        return [*words, "--first-seed", str(self.kept["seed"]), "--batches", "1", "--out", str(out)]


@dataclass(frozen=True)
class Line:
    """One line of a paper's table."""

    file: str
    recipe: str
    kept: Mapping[str, Any]

    @property
    def label(self) -> str:
        return f"{self.file}, {self.kept['name']}"

    @property
    def seconds(self) -> float:
        return float(self.kept["trials"] * self.kept["seconds"])

    def passed_over(self, longest: float) -> str | None:
        return f"its attacks took {self.seconds:.0f} s" if self.seconds > longest else None

    def again(self, data: Path, out: Path) -> list[str]:
        only, trials = f"^{re.escape(self.kept['name'])}$", str(self.kept["trials"])
        words = [sys.executable, "-m", "gradleak.bench.recipes", self.recipe, "--data-dir", str(data)]
        return [*words, "--runs", str(out.parent / "runs"), "--out", str(out), "--only", only, "--trials", trials]


def lines(folder: Path) -> Iterator[Line]:
    """Every line of a paper's table that was run to its end."""
    for place in sorted(folder.glob("*.json")):
        content = json.loads(place.read_text())
        for cell in content["cells"]:
            yield Line(place.stem, content["recipe"], cell)


def batches(folder: Path) -> Iterator[Batch]:
    """Every batch of the benches that can be asked for one."""
    for place in sorted(folder.glob("*.json")):
        content = json.loads(place.read_text())
        command = content.get(ABOUT, {}).get("command", "") if isinstance(content, dict) else ""
        if not any(f"gradleak.bench.{name} " in command for name in BENCHES) or not isinstance(
            content["cells"], list
        ):
            continue
        for cell in content["cells"]:
            yield Batch(place.stem, command, "note" in content or "note" in cell, cell)


def differences(kept: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    """The fields in which two runs of a batch differ, with both values.

    >>> differences({"whole": 4, "seconds": 2.0, "seed": 7}, {"whole": 3, "seconds": 9.0, "seed": 7, "new": 1})
    ['whole: 4 and 3']
    """
    both = [name for name in kept if name in again and name not in OF_THE_MACHINE]
    return [f"{name}: {kept[name]} and {again[name]}" for name in both if kept[name] != again[name]]


def outcome(batch: Batch | Line, again: Mapping[str, Any]) -> str:
    """What to say of a batch that was run again. Guessing has no part in what was read, and is told apart."""
    kept = batch.kept
    read = {name: value for name, value in kept.items() if name != "control"}
    control = "" if kept.get("control") == again.get("control") else "; its control is another"
    if differ := differences(read, again):
        return f"differs ({enumerated(differ)}){control}"
    named = not kept.get("whole") and kept.get("tokens_found") == kept.get("tokens") and kept.get("tokens_wrong") == 0
    whole = kept.get("whole") == kept.get("sentences") or named
    return ("the same tokens" if whole else "the same counts and scores, of which not all are whole") + control


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measurements", type=Path, default=Path("docs/measurements"))
    parser.add_argument("--recipes", type=Path, help="the folder of the papers' tables, to draw lines of them")
    parser.add_argument("--data-dir", type=Path, required=True, help="where the files lie that commands name")
    parser.add_argument("--seed", type=int, required=True, help="of the draw")
    parser.add_argument("--cells", type=int, default=3)
    parser.add_argument("--longest", type=float, default=600.0, help="seconds that a batch may have taken")
    given = parser.parse_args()
    drawn: list[Batch | Line] = [*(lines(given.recipes) if given.recipes else batches(given.measurements))]
    say(f"{len(drawn)} {'lines' if given.recipes else 'batches'}; seed of the draw {given.seed}")
    Random(given.seed).shuffle(drawn)
    left = given.cells
    for batch in drawn:
        if not left:
            break
        if (why := batch.passed_over(given.longest)) is not None:
            say(f"passed over: {batch.label}: {why}")
            continue
        left -= 1
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "again.json"
            done = subprocess.run(batch.again(given.data_dir, place), capture_output=True, text=True, check=False)
            if done.returncode or not place.is_file():
                say(f"{batch.label}: failed: {done.stderr.strip()[-300:]}")
                continue
            (again,) = json.loads(place.read_text())["cells"]
        now = again["seconds"] * (again["trials"] if isinstance(batch, Line) else 1)
        counts = [f"{name} {batch.kept[name]}" for name in ("sentences", "whole", "tokens") if name in batch.kept]
        said = f"{batch.label} ({', '.join(counts)}): {outcome(batch, again)}"
        say(f"{said}; {batch.seconds:.0f} s then, {now:.0f} s")


if __name__ == "__main__":
    main()
