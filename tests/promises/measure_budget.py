"""How well `--budget` is kept: every kind of update by every attack, from the shell, timed.

    python tests/promises/measure_budget.py --budget 15 --out budget.json [--only lora,auto]

Updates are made by a plain training loop of this script's own, or by `gradleak capture`. The bar: a command ends
within its budget + 10 % + 5 s. Rows that exist in the file already are not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gradleak import load_model
from gradleak.data.texts import read_data
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.manifest import Known, Manifest
from gradleak.updates.update import Update

ATTACKS = ("auto", "exact", "lamp-cos", "subspace", "bag", "film")
CAUSAL = {"lora", "adamw-lm"}
TEXTS = [row.text for row in read_data()]


def gradleak(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gradleak", *arguments], capture_output=True, text=True)


def made(result: subprocess.CompletedProcess[str]) -> None:
    if result.returncode:
        raise SystemExit(result.stderr)


def capture(*options: str) -> Callable[[Path], tuple[str, Path]]:
    def make(folder: Path) -> tuple[str, Path]:
        made(gradleak("capture", *options, "--out", str(folder / "update")))
        return "minilm", folder / "update"

    return make


def trained(name: str, *, batch: int, steps: int, lora: int | None = None) -> Callable[[Path], tuple[str, Path]]:
    """AdamW steps as any script takes them; the manifest can only name plain steps so far."""

    def make(folder: Path) -> tuple[str, Path]:
        model = load_model(name)
        module, tokenizer, source = model.module, model.tokenizer, name
        if lora is not None:
            import peft

            targets = ["q_proj", "v_proj"]
            module = peft.get_peft_model(module, peft.LoraConfig(r=lora, lora_alpha=2 * lora, target_modules=targets))
            with torch.no_grad():  # a later round: the factors have been trained before
                for key, parameter in module.named_parameters():
                    if "lora_B" in key:
                        parameter.normal_(std=0.02)
            source = str(folder / "adapter")
            module.save_pretrained(source)
            tokenizer.save_pretrained(source)
            model = load_model(source)
            module = model.module
        parameters = {key: p for key, p in module.named_parameters() if p.requires_grad}
        fingerprint = model.fingerprint
        before = {key: p.detach().clone() for key, p in parameters.items()}
        optimizer = torch.optim.AdamW(parameters.values(), lr=1e-4)
        for step in range(steps):
            texts = TEXTS[step * batch : (step + 1) * batch]
            encoded = model.encode(texts)
            targets_ = encoded.ids if model.task == "causal-lm" else torch.tensor([i % 2 for i in range(batch)])
            optimizer.zero_grad()
            model.batch_loss(encoded, targets_).backward()
            optimizer.step()
        tensors = {key: before[key] - p.detach() for key, p in parameters.items()}
        manifest = Manifest(
            task=model.task, family=model.family, model_fingerprint=fingerprint,
            client=ClientRule.parse(f"fedavg:lr=1e-4,epochs=1,batch={batch}"), known=Known(batch_size=batch * steps),
        )  # fmt: skip
        Update(tensors, manifest).save(folder / "update")
        return source, folder / "update"

    return make


def long_texts(folder: Path) -> tuple[str, Path]:
    file = folder / "long.txt"
    words = " ".join(TEXTS * 3).split()
    model = load_model("minilm")
    while len(model.tokenizer(" ".join(words), verbose=False)["input_ids"]) > 512:
        words = words[:-5]
    file.write_text(" ".join(words) + "\n")
    return capture("--data", str(file), "--max-tokens", "512", "--batch-size", "1")(folder)


UPDATES: dict[str, Callable[[Path], tuple[str, Path]]] = {
    "plain": capture("--batch-size", "4"),
    "adamw": trained("minilm", batch=8, steps=3),
    "lora": trained("smollm2", batch=4, steps=1, lora=8),
    "noisy": capture("--batch-size", "4", "--defense", "noise:sigma=0.01"),
    "64 sentences": capture("--batch-size", "64"),
    "512 tokens": long_texts,
}


def timed(kind: str, attack: str, model: str, update: str, budget: float) -> dict[str, Any]:
    began = time.monotonic()
    ended = gradleak("attack", update, "--model", model, "--attack", attack, "--budget", f"{budget:g}s")
    seconds = time.monotonic() - began
    said = ended.stderr.strip()[-200:] if ended.returncode else ""
    kept = seconds <= 1.1 * budget + 5
    return {
        "update": kind, "attack": attack, "budget": budget, "seconds": round(seconds, 1), "kept": kept,
        "exit": ended.returncode, "said": said,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=15.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for updates")
    parser.add_argument("--only", default="", help="parts of names of updates and attacks, divided by commas")
    given = parser.parse_args()
    rows = json.loads(given.out.read_text()) if given.out.exists() else []
    wanted = [part for part in given.only.split(",") if part]
    for kind, make in UPDATES.items():
        if wanted and not any(part in kind for part in wanted) and any(part in " ".join(UPDATES) for part in wanted):
            continue
        folder = given.work / kind.replace(" ", "-")
        place = folder / "made.json"
        if not place.exists():
            folder.mkdir(parents=True, exist_ok=True)
            model, update = make(folder)
            place.write_text(json.dumps([model, str(update)]))
        model, update = json.loads(place.read_text())
        for attack in ATTACKS:
            if any(row["update"] == kind and row["attack"] == attack for row in rows):
                continue
            if attack == "film" and kind not in CAUSAL:
                continue
            rows.append(timed(kind, attack, model, update, given.budget))
            given.out.write_text(json.dumps(rows, indent=1) + "\n")
            print("  ".join(str(value) for value in rows[-1].values()), flush=True)
    print(f"{sum(row['kept'] for row in rows)} of {len(rows)} within budget + 10 % + 5 s")


if __name__ == "__main__":
    main()
