"""Memory and time against size: `python -m gradleak.bench.size --data FILE --folder BIG --out size.json`.

Clients and attacks run in a process each, on models of real shapes with drawn weights (MiniLM and SmolLM2 are real).
Peaks are of whole processes: `resident` (VmHWM) counts pages of mapped files too, which the system may drop at any
moment, `anonymous` (RssAnon, looked at every few milliseconds) only what cannot be dropped. Both have what Python and
the libraries take by themselves, which is measured first. The same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradleak.bench.pages import fill_page
from gradleak.bench.provenance import ABOUT, about
from gradleak.bench.shapes import drawn
from gradleak.bench.size_show import figure, table
from gradleak.core.files import write_text
from gradleak.core.output import say

LORA = "r=16,targets=query+value,b=0.02"
BATCHES = (1, 8)
REAL = ("minilm", "smollm2")
# What is run on which models: the attack, and whether LoRA's factors are all that is trained.
WAYS = {
    "exact": ("exact", False),
    "bag": ("bag", False),
    "lora-bag": ("bag", True),
    "lora-contains": ("contains", True),
}
PLAN = {
    **dict.fromkeys((*REAL, "llama-0.3b", "qwen2-0.5b", "qwen2-1.5b"), ("exact", "bag", "lora-bag")),
    "llama-3-8b": ("lora-bag", "lora-contains"),
}
# Of `contains` on drawn weights: how many others are asked about, and public sentences for it to learn from.
OTHERS, PUBLIC = 3, 24
LOOK_SECONDS = 0.02
WORDS = range(8, 15)


def texts_of(data: Path, count: int, first: int = 0) -> list[str]:
    """So many sentences of usual length of a JSON list, from one on."""
    texts = (text for text in json.loads(data.read_text(encoding="utf-8")) if len(text.split()) in WORDS)
    return list(itertools.islice(texts, first, first + count))


# --- inside the measured process ------------------------------------------------------------------------


def _load(model: str, lora: bool) -> Any:
    from gradleak.models.load import load_text_model

    return load_text_model(model, lora=LORA if lora else None)


def run_client(model: str, lora: bool, data: Path, size: int, update: Path) -> dict[str, Any]:
    """Make an update as a client does."""
    from gradleak.clients.text import Client

    target = _load(model, lora)
    texts = texts_of(data, size)
    labels = None if target.task == "causal-lm" else [n % 2 for n in range(size)]
    started = time.monotonic()
    Client(target).update(texts, labels).save(update)
    count = sum(p.numel() for p in target.module.parameters())
    return {
        "seconds": time.monotonic() - started,
        "parameters": count,
        # As they were saved, in bf16 where they are drawn; those of MiniLM and SmolLM2 are fp32.
        "weight_bytes": sum(file.stat().st_size for file in Path(model).glob("*.safetensors")) or 4 * count,
        "update_bytes": sum(4 * p.numel() for p in target.parameters().values()),
    }


def run_attack(model: str, lora: bool, name: str, data: Path, size: int, update: Path) -> dict[str, Any]:
    """Read it; the sentences come into it only to count what was found."""
    from gradleak.attacks.contains.run import contains
    from gradleak.attacks.run import attack
    from gradleak.updates.update import load_update

    target = _load(model, lora)
    shared = load_update(update, target)
    started = time.monotonic()
    truth = texts_of(data, size)
    if name == "contains":
        listed = truth + texts_of(data, OTHERS, size)
        found = contains(shared, target, listed, public=texts_of(data, PUBLIC, size + OTHERS), references=PUBLIC // 2)
        rates = [each.false_alarm_rate for each in found.candidates]
        return {"seconds": time.monotonic() - started, "in": rates[:size], "out": rates[size:]}
    (answer,) = attack(shared, target, name)
    rows = [target.content(row) for row in target.encode(truth).sentences()]
    names = {str(each) for row in rows for each in target.tokenizer.convert_ids_to_tokens(row)}
    return {
        "seconds": time.monotonic() - started,
        "whole": sum(row in [sentence.tokens for sentence in answer.sentences] for row in rows),
        "certified": sum(sentence.certified for sentence in answer.sentences),
        "tokens": len(names),
        "tokens_found": len(names & set(answer.bag)),
        "tokens_wrong": len(set(answer.bag) - names),
    }


def run_nothing() -> dict[str, Any]:
    """What is there before any model: the interpreter and the libraries."""
    import peft
    import torch
    import transformers

    from gradleak.attacks.run import attack
    from gradleak.clients.text import Client

    loaded = [transformers.LlamaForCausalLM, transformers.Qwen2ForCausalLM, peft.LoraConfig, Client, attack]
    torch.ones(64, 64).matmul(torch.ones(64, 64))
    return {"loaded": len(loaded)}


# --- outside --------------------------------------------------------------------------------------------


def measured(arguments: Sequence[str]) -> dict[str, Any]:
    """What a process says of itself, with its peaks and its time; `refused` is its error, if it ended with one."""
    started, anonymous = time.monotonic(), 0
    process = subprocess.Popen(
        [sys.executable, "-m", "gradleak.bench.size", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    status = Path(f"/proc/{process.pid}/status")
    resident = 0
    while process.poll() is None:
        fields = _fields(status)
        anonymous, resident = max(anonymous, fields.get("RssAnon", 0)), max(resident, fields.get("VmHWM", 0))
        time.sleep(LOOK_SECONDS)
    out, errors = process.communicate()
    peaks = {"anonymous": anonymous, "resident": resident, "process_seconds": round(time.monotonic() - started, 1)}
    if process.returncode:
        lines = errors.strip().splitlines()
        return {**peaks, "refused": lines[-1] if lines else f"ended by signal {-process.returncode}"}
    return {**json.loads(out.splitlines()[-1]), **peaks}


def _fields(status: Path) -> dict[str, int]:
    """The amounts of memory in a process's status, in bytes."""
    try:
        lines = [line.split() for line in status.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0].rstrip(":"): int(line[1]) << 10 for line in lines if len(line) == 3 and line[2] == "kB"}


def run_plan(
    data: Path, folder: Path, out: Path, models: Sequence[str], batches: Sequence[int], ways: Sequence[str]
) -> None:
    """Every cell that is not in the file yet; updates lie in the folder only while they are needed."""
    kept = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"cells": []}

    def keep() -> None:
        kept["cells"].sort(
            key=lambda cell: (list(PLAN).index(cell["model"]), cell["batch"], list(WAYS).index(cell["way"]))
        )
        kept[ABOUT] = about("each its own; weights of shapes are drawn", data, before=kept)
        write_text(out, json.dumps(kept, indent=1) + "\n")

    if "nothing" not in kept:
        kept["nothing"] = measured(["--one", "nothing"])
    for model in models:
        source = model if model in REAL else str(drawn(model, folder))
        for size in batches:
            for lora in (False, True):
                todo = [way for way in PLAN[model] if way in ways and WAYS[way][1] == lora]
                todo = [way for way in todo if not any(_same(cell, model, size, way) for cell in kept["cells"])]
                if not todo:
                    continue
                update = folder / f"update-{model}-{size}-{lora}"
                told = {"data": data, "model": source, "size": size, "update": update}
                common = [text for name, value in told.items() for text in (f"--{name}", str(value))]
                common += ["--lora"] * lora
                client = measured(["--one", "client", *common])
                for way in todo:
                    attack = (
                        {}
                        if "refused" in client
                        else measured(["--one", "attack", "--attack", WAYS[way][0], *common])
                    )
                    cell = {"model": model, "batch": size, "way": way, "client": client, "attack": attack}
                    kept["cells"].append(cell)
                    keep()
                    say(json.dumps(cell))
                shutil.rmtree(update, ignore_errors=True)


def _same(cell: dict[str, Any], model: str, size: int, way: str) -> bool:
    return (cell["model"], cell["batch"], cell["way"]) == (model, size, way)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.size")
    parser.add_argument("--data", type=Path, help="a JSON list of sentences")
    parser.add_argument("--folder", type=Path, help="where drawn models and updates go: up to 30 GB")
    parser.add_argument("--out", type=Path, help="the file of all measurements")
    parser.add_argument("--models", nargs="+", choices=list(PLAN), default=list(PLAN))
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--page", type=Path, help="a page to put the table of the file into, once all is measured")
    parser.add_argument("--figure", type=Path, help="an .svg file of it")
    inner = parser.add_argument_group("what the measured processes are called with")
    inner.add_argument("--one", choices=["nothing", "client", "attack"])
    inner.add_argument("--model")
    inner.add_argument("--attack")
    inner.add_argument("--size", type=int, default=1)
    inner.add_argument("--lora", action="store_true")
    inner.add_argument("--update", type=Path)
    given = parser.parse_args(arguments)
    if given.one is None:
        if given.data is None or given.folder is None or given.out is None:
            parser.error("--data, --folder and --out are required")
        given.folder.mkdir(parents=True, exist_ok=True)
        os.environ["TMPDIR"] = str(given.folder)  # updates are written there before they are saved
        run_plan(given.data, given.folder, given.out, given.models, given.batches, given.ways)
        kept = json.loads(given.out.read_text(encoding="utf-8"))
        if given.page is not None:
            fill_page(given.page, "gradleak.bench.size", table(kept))
        if given.figure is not None:
            write_text(given.figure, figure(kept))
        return
    if given.one == "nothing":
        found = run_nothing()
    elif given.one == "client":
        found = run_client(given.model, given.lora, given.data, given.size, given.update)
    else:
        found = run_attack(given.model, given.lora, given.attack, given.data, given.size, given.update)
    say(json.dumps({**found, "processor_seconds": round(time.process_time(), 1)}))


if __name__ == "__main__":
    main()
