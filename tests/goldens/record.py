"""What every attack, experiment and image audit gives on tiny models with fixed seeds, as one JSON file.

    python tests/goldens/record.py write                # keep what the present code gives
    python tests/goldens/record.py check                # compare the present code with what was kept
    python tests/goldens/record.py check lamp '* exact'  # only sections of such names: parts of them, or patterns

`check` is how a change that must not touch results is shown not to: tokens, scores and tables are compared, times and
the names of cells (which hold a hash of the code) are not. Numbers may differ by rounding (1e-6 of their size).

What a section gave is set aside in the cache under a hash of the code, so a run that was stopped goes on where it
stopped, and `write` after `check` runs nothing again.
"""

from __future__ import annotations

import hashlib
import json
import math
import pkgutil
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from blobs import SMALL, blobs, write_npz
from tiny import CASES, tiny_model, tiny_tokenizer

import gradleak
from gradleak import (
    AuditSpec,
    Budget,
    GradleakError,
    RunOptions,
    SweepSpec,
    audit,
    audit_checkpoints,
    frontier,
    leak_map,
    load_frontier,
    load_recipe,
    reproduce,
    sweep,
    train_inverter,
)
from gradleak.attacks.inversion.networks import NetworkSettings
from gradleak.attacks.inversion.training import TrainSettings
from gradleak.core.assets import cache_folder
from gradleak.core.files import write_text
from gradleak.core.identity import digest_code
from gradleak.core.progress import SILENT
from gradleak.data.texts import read_data
from gradleak.experiments.recipes.table import markdown
from gradleak.training.finetune import FinetuneSettings, finetune

FILE = Path(__file__).with_name("goldens.json")
# Clients draw from it, so that their noise is the same on every machine.
SECRET = str(Path(__file__).with_name("client.key"))
ALL_KNOWN = ("batch_size", "labels", "lengths")
SEARCH = {"steps": 5, "init_draws": 3, "init_orders": 2}
LAMP = {**SEARCH, "discrete_every": 2, "candidates": 8}
ATTACKS: dict[str, dict[str, Any]] = {
    "auto": {"steps": 4},
    "bag": {},
    "control": {},
    "exact": {},
    "film": {"rounds": 2, "beams": 4, "groups": 2, "length": 12},
    "soft": {"rehearsals": 1, "beams": 4, "length": 12},
    "dlg": SEARCH,
    "tag": SEARCH,
    "lamp-cos": LAMP,
    "lamp-l2": LAMP,
    "lamp-l2l1": LAMP,
    "subspace": LAMP,
}
Sections = dict[str, Callable[[Path], Any]]


# --- what is kept of a result -----------------------------------------------------------------------


def kept(results: Any) -> dict[str, Any]:
    """The tokens, images and scores of an audit."""
    return {
        "status": results.status,
        "summary": {name: interval.model_dump() for name, interval in results.summary.items()},
        "control": {name: interval.model_dump() for name, interval in results.control.items()},
        "trials": [_trial(trial) for trial in results.trials],
    }


def _trial(trial: Any) -> dict[str, Any]:
    found = trial.reconstruction
    return {
        "truth": [_short(text) for text in trial.truth],
        "labels": trial.labels,
        "tokens": [sentence.tokens for sentence in found.sentences],
        "certified": [sentence.certified for sentence in found.sentences],
        "confidence": [sentence.confidence for sentence in found.sentences],
        "images": [_short(uri) for uri in found.images],
        "found": [found.labels, found.lengths, found.found, len(found.bag)],
        "reasons": [sorted(reason.numbers.values()) for reason in found.reasons],
        "loss": found.loss,
        "scores": trial.scores,
        "control": trial.control_scores,
        "told": trial.found,
        "distance": trial.truth_distance,
        "signal": trial.signal,
        "noise": trial.noise,
    }


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12] if text.startswith("data:") else text


# --- the runs ---------------------------------------------------------------------------------------


def sections() -> Sections:
    found: Sections = {}
    for family, task in CASES:
        for attack in ATTACKS:
            found[f"audit {family} {task} {attack}"] = _audit(family, task, attack)
    for defense in ("noise:sigma=0.001", "sign", "prune:ratio=0.9", "mask:ratio=0.5", "dpsgd:noise=0.01,clip=1.0"):
        found[f"defended {defense}"] = _audit("bert", "classification", "auto", defenses=[defense])
    found["fedavg"] = _audit("bert", "classification", "lamp-cos", client="fedavg:epochs=2,batch=1,lr=1e-3")
    found["untold"] = _audit("roberta", "classification", "lamp-cos", known=("batch_size",), batch_size=1)
    found["lti"] = _lti
    found["map"] = _map
    found["checkpoints"] = _checkpoints
    found["frontier"] = _frontier
    found["sweep"] = _sweep
    found["recipe"] = _recipe
    for attack, options in IMAGE_ATTACKS.items():
        for defense in ("", "sign", "prune:ratio=0.9", "noise:sigma=0.01"):
            found[f"images {attack} {defense}"] = _images(attack, options, defense)
    found["images batch"] = _images("ig", {"steps": 20}, "", batch_size=2, known=("batch_size", "labels"))
    return found


def _audit(family: str, task: str, attack: str, **settings: Any) -> Callable[[Path], Any]:
    def run(_: Path) -> Any:
        longest = 40 if family in ("gpt2", "llama") else 14
        usual = {"trials": 2, "batch_size": 2, "seed": 3, "known": ALL_KNOWN, "max_tokens": longest, "secret": SECRET}
        return kept(audit(tiny_model(family, task), attack=attack, options=ATTACKS[attack], **{**usual, **settings}))

    return run


def _lti(place: Path) -> Any:
    model, texts = tiny_model("gpt2", "causal-lm"), [row.text for row in read_data()]
    train_inverter(
        model, place / "inverter", aux=texts, defenses=["sign"],
        network=NetworkSettings(features="structured", length=8), settings=TrainSettings(steps=6, batch=4),
    )  # fmt: skip
    options = {"inverter": str(place / "inverter")}
    return kept(audit(model, attack="lti", options=options, defenses=["sign"], window=8, trials=3, seed=1))


def _map(place: Path) -> Any:
    config = AuditSpec(
        model=str(_model(place)), attack="lamp-cos", options=LAMP, known=ALL_KNOWN, trials=2, batch_size=1, seed=2,
        max_tokens=14,
    )  # fmt: skip
    found = leak_map(config, place / "map")
    names = ("selection", "layer", "column", "parameters", "share", "leak", "control", "values", "guesses")
    cells = [{name: cell.model_dump()[name] for name in names} for cell in found.cells]
    return {"status": found.status, "layers": found.layers, "columns": found.columns, "cells": cells}


def _checkpoints(place: Path) -> Any:
    model = tiny_model("gpt2", "causal-lm")
    settings = FinetuneSettings.usual("causal-lm", epochs=1, lr=3e-3, batch_size=None, checkpoints=2, seed=0)
    finetune(model, read_data(), place / "trained", settings, Budget(), SILENT)
    config = AuditSpec(
        model=str(place / "trained"), attack="dlg", options=SEARCH, known=("batch_size", "lengths"), trials=3,
        batch_size=2, max_tokens=40,
    )  # fmt: skip
    found = audit_checkpoints(config, place / "checkpoints")
    names = ("step", "learned", "leak", "control", "change")
    return [{name: point.model_dump()[name] for name in names} for point in found.points]


FRONTIER = """
model: {model}
trials: 2
known: [batch_size, labels, lengths]
max_tokens: 14
seed: 1
secret: {secret}
attacks:
  - {{name: dlg, options: {{steps: 3, init_draws: 2}}}}
  - exact
defenses: ["noise:sigma=0.001", [frozen, "sign"]]
utility: {{rounds: 2, clients: 2, batch_size: 2, lr: 0.01, seeds: 2, test_rows: 10}}
"""


def _frontier(place: Path) -> Any:
    (place / "frontier.yaml").write_text(FRONTIER.format(model=_model(place), secret=SECRET))
    found = frontier(load_frontier(place / "frontier.yaml", {}), place / "frontier").model_dump(mode="json")
    for point in found["points"]:
        for score in point["attacks"].values():
            del score["measure"]  # which metric it is was not written down before images had frontiers
            assert score.pop("planned") is None  # nor were unfinished attacks, of which there are none here
        assert point.pop("missing") == []
    names = ("status", "metric", "points", "control", "untrained", "majority", "advice")
    return {name: found[name] for name in names}


def _sweep(place: Path) -> Any:
    config = SweepSpec.model_validate(
        {
            "models": [str(_model(place))],
            "attacks": ["exact", {"name": "lamp-cos", "options": LAMP}],
            "defenses": ["none", "noise:sigma=0.001"],
            "batch_sizes": [1, 2],
            "known": ALL_KNOWN,
            "max_tokens": 14,
            "trials": 2,
            "seeds": 2,
            "together": 2,
            "secret": SECRET,
        }
    )
    lines = sweep(config, place / "sweep", options=RunOptions(workers=2)).lines
    return [{name: value for name, value in line.items() if name not in ("cell", "model")} for line in lines]


RECIPE = """
title: A small table
source: nowhere
trials: 2
known: [batch_size, labels, lengths]
cells:
  - {name: one, data: cola, attack: dlg, options: {steps: 2}, paper: {BERT-base: [59.3, 7.7, 46.2]}}
  - {name: two, data: cola, attack: lamp-cos, options: {steps: 2}, batch_size: 2, defenses: ["sign"]}
  - {name: "query *", data: cola, attack: dlg, options: {steps: 2}, observe: "layer:*.query", every_layer_from: 1}
utility: {data: cola, rounds: {rounds: 2, clients: 1, batch_size: 2, seeds: 2, test_rows: 8}}
"""


def _recipe(place: Path) -> Any:
    lines = [f"x\t{number % 2}\t\t{row.text}" for number, row in enumerate(read_data()[:40])]
    (place / "cola_train.tsv").write_text("\n".join(lines))
    (place / "small.yaml").write_text(RECIPE)
    recipe, model = load_recipe(str(place / "small.yaml")), str(_model(place))
    done = reproduce(recipe, place / "out", data_dir=place, model=model)
    assert done.utility is not None
    # The seconds of a trial differ from run to run.
    table = re.sub(r"\| 2 \| \d+ \|", "| 2 | s |", markdown(done))
    return {"table": table, "cells": [kept(results) for _, results in done.lines], "utility": _utility(done.utility)}


def _utility(learned: Any) -> Any:
    values = learned.model_dump(mode="json")
    return {name: values[name] for name in ("untrained", "majority", "settings")}


IMAGE_ATTACKS: dict[str, dict[str, Any]] = {
    "ig": {"steps": 20},
    "gi-gip": {"latent_steps": 6, "weight_steps": 6, "epochs": 1, "restarts": 2, "latent": 8, "width": 4},
    "lti": {"hidden": 32, "steps": 20, "batch": 16},
    "control": {},
}


def _images(attack: str, options: dict[str, Any], defense: str, **settings: Any) -> Callable[[Path], Any]:
    def run(place: Path) -> Any:
        data = write_npz(place / "blobs.npz", blobs(12), blobs(64, seed=1))
        usual = {"trials": 3, "seed": 1, "defenses": [defense] if defense else [], "secret": SECRET}
        return kept(audit(SMALL, data=data, attack=attack, options=options, **{**usual, **settings}))

    return run


def _model(place: Path) -> Path:
    folder = place / "model"
    tiny_model("bert", "classification").module.save_pretrained(folder)
    tiny_tokenizer("bert").save_pretrained(folder)
    return folder


# --- comparing --------------------------------------------------------------------------------------


def chosen(wanted: Sequence[str]) -> Sections:
    """The sections whose names hold one of the texts or fit one of the patterns; all if there are none."""
    fit = [text if "*" in text else f"*{text}*" for text in wanted or ("*",)]
    return {name: section for name, section in sections().items() if any(fnmatch(name, each) for each in fit)}


def present_code() -> str:
    """A hash of all that decides what the sections give."""
    package = pkgutil.walk_packages(gradleak.__path__, "gradleak.", onerror=lambda _: None)
    whole = hashlib.sha256(digest_code(frozenset(module.name for module in package)).encode())
    for path in (Path(__file__), *(Path(__file__).parents[1] / name for name in ("blobs.py", "tiny.py"))):
        whole.update(path.read_bytes())
    return whole.hexdigest()[:32]


def run(wanted: Sequence[str] = ()) -> dict[str, Any]:
    """What the present code gives in the chosen sections."""
    torch.set_num_threads(1)
    aside = cache_folder() / "goldens" / f"{present_code()}.json"
    aside.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(aside.read_text()) if aside.is_file() else {}
    for name, section in chosen(wanted).items():
        if name not in found:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found[name] = json.loads(json.dumps(section(Path(folder))))
                except GradleakError:
                    found[name] = "refused"
            write_text(aside, json.dumps(found))
            print(name, file=sys.stderr, flush=True)
    return {name: found[name] for name in chosen(wanted)}


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Where two records differ by more than rounding."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = list(dict.fromkeys([*old, *new]))
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{where}/{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for i, pair in pairs for line in differences(*pair, f"{where}/{i}")]
    numbers = isinstance(old, int | float) and isinstance(new, int | float)
    same = math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-9) if numbers else old == new
    return [] if same else [f"{where}: {old!r} became {new!r}"]


def main() -> None:
    what, *wanted = sys.argv[1:]
    found = run(wanted)
    if not found:
        sys.exit(f"no section has such a name: {', '.join(wanted)}")
    old = json.loads(FILE.read_text()) if FILE.is_file() else {}
    if what == "write":
        kept_too = old if wanted else {}
        FILE.write_text(json.dumps({**kept_too, **found}, separators=(",", ":"), sort_keys=True) + "\n")
        return
    compared = {name: old.get(name) for name in (found if wanted else {**old, **found})}
    lines = differences(compared, found)
    print("\n".join(lines) or f"{len(found)} sections are as they were")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
