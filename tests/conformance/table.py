"""Every family and task by every attack, defence and form of update: the table of `docs/families.md`.

    python tests/conformance/table.py run          # fill docs/measurements/families.json; goes on where it stopped
    python tests/conformance/table.py run bert     # only families of that name, again
    python tests/conformance/table.py write        # write the table into docs/families.md
    python tests/conformance/table.py check        # exit with 1 if a cell crashed or is missing, or the page differs

Models are tiny and their weights drawn, so a cell says whether a family is read, not how well real weights are.
"""

from __future__ import annotations

import functools
import json
import random
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from blobs import blobs
from defence_settings import SETTINGS
from pictured import KINDS, image_model
from tiny import ALL_CASES, PAIR_CASES, TARGETS, TASK_CASES, TEXTS, secret_of, tiny_model, wide_model

from gradleak import (
    Budget,
    Client,
    GradleakError,
    ImageClient,
    TextModel,
    Update,
    attack,
    contains,
    load_model,
    load_update,
)
from gradleak.bench.provenance import ABOUT, about
from gradleak.data.texts import read_data
from gradleak.defenses import DEFENSES

ROOT = Path(__file__).parents[2]
KEPT, PAGE = ROOT / "docs" / "measurements" / "families.json", ROOT / "docs" / "families.md"
START, END = "<!-- table: begin -->", "<!-- table: end -->"
SECONDS = 60
QUICK = {"steps": 4, "init_draws": 2, "init_orders": 0, "discrete_every": 2, "candidates": 4, "prior": "none"}
MATCHING = ("dlg", "tag", "lamp-cos", "lamp-l2l1", "lamp-l2", "subspace")
LORA, PAIRED = "r=32,b=0.2,targets=query+value", "+cross_query+cross_value"

IMAGE_QUICK: dict[str, dict[str, Any]] = {
    "exact": {},
    "ig": {"steps": 1},
    "gi-gip": {"latent_steps": 1, "weight_steps": 1, "restarts": 1, "latent": 4, "width": 1, "epochs": 1},
    "lti": {"steps": 1, "hidden": 2, "batch": 2},
}

Case = tuple[str, str]
Cell = dict[str, Any]
IMAGES = "image-classification"
TEXT_CASES: list[Case] = sorted({*ALL_CASES, *TASK_CASES, *((name, "seq2seq") for name in PAIR_CASES)})
IMAGE_CASES: list[Case] = [(kind, IMAGES) for kind in KINDS]


def updated(model: TextModel, texts: list[str], **client: Any) -> Update:
    rng, second = random.Random(0), dict(zip(TEXTS, TARGETS, strict=True))
    labels: list[Any] | None = None
    if model.goal.labelled:
        labels = [second[text] if model.goal.paired else model.goal.drawn_label(model, text, rng) for text in texts]
    return Client(model, ("batch_size", "labels", "lengths"), **client).update(texts, labels, secret_of(0))


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def reconstructed(model: TextModel, update: Update, name: str, texts: list[str], **options: Any) -> Cell:
    """What came back of the texts: how many whole, how many proved, which share of the tokens."""
    (found,) = attack(update, model, name, budget=Budget(seconds=SECONDS), **options)
    second = dict(zip(TEXTS, TARGETS, strict=True))
    wanted_texts = [*texts, *(second[text] for text in texts if model.goal.paired)]
    truth = [tuple(model.content(row)) for row in model.encode(wanted_texts).sentences()]
    read = [tuple(sentence.tokens) for sentence in found.sentences]
    wanted, in_sentences = (
        set(model.tokenizer.convert_ids_to_tokens([token for row in rows for token in row])) for rows in (truth, read)
    )
    seen = set(found.bag) | in_sentences
    cell: Cell = {
        "whole": sum(row in read for row in truth),
        "of": len(truth),
        "certified": sum(sentence.certified for sentence in found.sentences),
        "tokens": round(len(wanted & seen) / len(wanted), 2),
        "status": found.status,
    }
    if not found.sentences and found.reasons:
        cell["reasons"] = [reason.kind for reason in found.reasons]
    return cell


# --- columns: what is tried of every family -----------------------------------------------------------


def exactly(name: str, case: Case) -> Cell:
    model = wide_model(*case)
    return reconstructed(model, updated(model, TEXTS[:2]), name, TEXTS[:2])


def tried(settings: Iterable[str], attempt: Callable[[str], None]) -> Cell:
    """Which of several settings ran, and why others did not."""
    ran, refused = [], {}
    for setting in settings:
        try:
            attempt(setting)
            ran.append(setting)
        except GradleakError as error:
            refused[setting] = one_line(error)
    return {"ran": ran, "without": refused}


def by_matching(case: Case) -> Cell:
    """Some steps of every attack that matches gradients, which are too few to read anything."""
    model = tiny_model(*case)
    update = updated(model, TEXTS[1:2])

    def attempt(name: str) -> None:
        (found,) = attack(update, model, name, budget=Budget(seconds=SECONDS), polish=0, **QUICK)
        assert found.sentences
        assert found.status == "completed"

    return tried(MATCHING, attempt)


def quickly(name: str, case: Case) -> Cell:
    model = tiny_model(*case, layers=4, width=64)
    return reconstructed(model, updated(model, TEXTS[1:2]), name, TEXTS[1:2])


def by_candidates(case: Case) -> Cell:
    """Whether the sentence that was in has the highest score of thirteen."""
    model = tiny_model(*case, layers=4, width=64)
    update, texts = updated(model, TEXTS[:1]), [row.text for row in read_data()]
    found = contains(
        update, model, [TEXTS[0], *texts[:12]], public=texts[12:], references=40, budget=Budget(seconds=SECONDS)
    )
    scores = [candidate.score or 0.0 for candidate in found.candidates]
    return {"first": scores[0] == max(scores)}


def adapted(name: str, case: Case) -> Cell:
    below = tiny_model(*case, layers=4, width=64)
    lora = f"{LORA}{PAIRED if below.goal.paired else ''}"
    model = load_model(below.module, tokenizer=below.tokenizer, task=below.task, lora=lora)
    return reconstructed(model, updated(model, TEXTS[1:2]), name, TEXTS[1:2])


def from_folder(case: Case) -> Cell:
    """Saved, loaded and attacked from files."""
    model = wide_model(*case)
    with tempfile.TemporaryDirectory() as folder:
        model.module.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)
        again = load_model(folder, task=model.task)
        place = updated(model, TEXTS[:1]).save(Path(folder) / "update")
        return reconstructed(again, load_update(place, again), "exact", TEXTS[:1])


def defended(case: Case) -> Cell:
    model = tiny_model(*case)

    def attempt(name: str) -> None:
        tensors = updated(model, TEXTS[:1], defenses=[SETTINGS[name]]).tensors
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())

    return tried(SETTINGS, attempt)


def of_an_image(name: str, case: Case) -> Cell:
    """One image, by too few steps to show it where there are steps."""
    model = image_model(case[0])
    update = ImageClient(model).update(blobs(1), secret_of(0))
    (found,) = attack(update, model, name, auxiliary=blobs(6, seed=1), **IMAGE_QUICK[name])
    cell: Cell = {"image": bool(found.images), "certified": len(found.certified_images)}
    if not found.images:
        cell["reasons"] = [reason.kind for reason in found.reasons]
    return cell


def defended_image(case: Case) -> Cell:
    model = image_model(case[0])

    def attempt(name: str) -> None:
        setting = {"frozen": "frozen:parts=none,names=*bias"}.get(name, SETTINGS[name])
        tensors = ImageClient(model, defenses=[setting]).update(blobs(1), secret_of(0)).tensors
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())

    return tried(SETTINGS, attempt)


IMAGE_COLUMNS: dict[str, Callable[[Case], Cell]] = {
    **{name: functools.partial(of_an_image, name) for name in IMAGE_QUICK},
    "defences": defended_image,
}
COLUMNS: dict[str, Callable[[Case], Cell]] = {
    "exact": functools.partial(exactly, "exact"),
    "from files": from_folder,
    "bag": functools.partial(exactly, "bag"),
    "auto": functools.partial(quickly, "auto"),
    "soft": functools.partial(quickly, "soft"),
    "film": functools.partial(quickly, "film"),
    "LoRA, exact": functools.partial(adapted, "exact"),
    "LoRA, bag": functools.partial(adapted, "bag"),
    "contains": by_candidates,
    "matching": by_matching,
    "defences": defended,
}


def columns_of(case: Case) -> dict[str, Callable[[Case], Cell]]:
    return IMAGE_COLUMNS if case[1] == IMAGES else COLUMNS


def key_of(case: Case, column: str) -> str:
    return f"{case[0]} {case[1]} {column}"


def kept() -> dict[str, Any]:
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {"cells": {}}


def run(cases: Iterable[Case], cells: dict[str, Cell], again: bool) -> None:
    for case in cases:
        for column, measure in columns_of(case).items():
            key = key_of(case, column)
            if key in cells and not again:
                continue
            started = time.monotonic()
            try:
                cells[key] = measure(case)
            except GradleakError as error:
                cells[key] = {"refused": one_line(error)}
            except Exception as error:  # a crash is what the table is looking for
                cells[key] = {"crash": f"{type(error).__name__}: {str(error)[:200]}"}
            cells[key]["seconds"] = round(time.monotonic() - started, 1)
            print(key, cells[key], flush=True)
            named = about("tiny models of all families, weights drawn", "three invented sentences", before=kept())
            text = json.dumps({ABOUT: named, "cells": cells}, indent=1, sort_keys=True)
            KEPT.write_text(f"{text}\n", encoding="utf-8")


# --- the page -----------------------------------------------------------------------------------------


def noted(why: str, notes: dict[str, int]) -> str:
    """The number of a note; those that differ only in what a model or a part is called are one."""
    why = re.sub(r"; \S+ has neither", "; this model has neither", why)
    why = re.sub(r"dpsgd: \S+ is a batch norm, which", "dpsgd: the model has a batch norm, which", why)
    why = re.sub(r"; those of \S+ cannot be tried", "; those of this task cannot be tried", why)
    return f"[{notes.setdefault(why, len(notes) + 1)}]"


def shown(cell: Cell, notes: dict[str, int]) -> str:
    """A cell in a word: what it says at length is a note below the table."""
    if "crash" in cell:
        return "**crash**"
    if "refused" in cell:
        return f"no {noted(cell['refused'], notes)}"
    if "ran" in cell:
        # What all attacks of a kind say alike is one note.
        lacking = [f" {noted(re.sub(rf'^{name} ', 'It ', why), notes)}" for name, why in cell["without"].items()]
        return f"{len(cell['ran'])} of {len(cell['ran']) + len(lacking)}{''.join(dict.fromkeys(lacking))}"
    if "image" in cell:
        why = f"Nothing was read: {', '.join(cell.get('reasons', []))}."
        if not cell["image"]:
            return f"– {noted(why, notes)}"
        return "whole ✓" if cell["certified"] else "runs"
    if "first" in cell:
        return "told apart" if cell["first"] else "not told apart"
    if cell["whole"] == cell["of"]:
        return "whole ✓" if cell["certified"] == cell["of"] else "whole"
    why = f"Nothing was read: {', '.join(cell.get('reasons', ['no reason was given']))}."
    return f"{cell['tokens']:.0%} tokens" if cell["tokens"] else f"– {noted(why, notes)}"


def table(cells: dict[str, Cell]) -> str:
    notes: dict[str, int] = {}
    lines: list[str] = []
    for cases, columns in ((TEXT_CASES, COLUMNS), (IMAGE_CASES, IMAGE_COLUMNS)):
        lines += [f"| family | task | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
        for case in cases:
            row = [shown(cells[key_of(case, column)], notes) for column in columns]
            lines.append(f"| {case[0]} | {case[1]} | {' | '.join(row)} |")
        lines.append("")
    return "\n".join([*lines, *(f"{number}. {note}" for note, number in notes.items())])


def page(cells: dict[str, Cell]) -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    return f"{before}{START}\n\n{table(cells)}\n\n{END}{rest.partition(END)[2]}"


def missing(cells: dict[str, Cell]) -> list[str]:
    keys = (key_of(case, column) for case in (*TEXT_CASES, *IMAGE_CASES) for column in columns_of(case))
    return [key for key in keys if key not in cells]


def main(what: str, *only: str) -> int:
    assert set(SETTINGS) == set(DEFENSES.names())
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cells: dict[str, Cell] = kept()["cells"]
    if what == "run":
        cases = [*TEXT_CASES, *IMAGE_CASES]
        run([case for case in cases if not only or case[0] in only], cells, again=bool(only))
    elif what == "write":
        PAGE.write_text(page(cells), encoding="utf-8")
    elif what == "check":
        crashed = [key for key, cell in cells.items() if "crash" in cell]
        for key in [*crashed, *missing(cells)]:
            print(key, cells.get(key, "was not run"))
        return int(bool(crashed or missing(cells)) or page(cells) != PAGE.read_text(encoding="utf-8"))
    else:
        print(__doc__)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or ("help",)))
