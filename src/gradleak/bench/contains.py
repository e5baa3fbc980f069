"""How well `contains` tells sentences that were in from sentences that were not, after AdamW on LoRA factors.

Clients are plain torch and peft, not gradleak's own. What `contains` is told is the client's rule, nothing else; the
power, the weights and the whitening come from public text. Every run is a cell of the output file, kept when it ends,
so the same command goes on where it stopped. Needs a folder with the model and a JSON list of sentences:

    python -m gradleak.bench.contains --data sentences.json --steps 10 --batch 4 --runs 5 --out cells.json
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.contains.calibration import told_apart
from gradleak.attacks.contains.result import Containment
from gradleak.attacks.contains.run import contains
from gradleak.bench.provenance import ABOUT, about
from gradleak.core.files import write_text
from gradleak.core.output import say
from gradleak.models.load import load_model
from gradleak.models.text import TextModel
from gradleak.scoring.interval import mean_interval
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.manifest import Manifest
from gradleak.updates.update import Update

LR, RANK, TARGETS = 2e-4, 16, ["q_proj", "v_proj"]
# Candidates of a run: members at most, and sentences that were not in.
MEMBERS, OTHERS = 100, 200
# Public sentences that false alarms are counted on: just enough for 1 %.
REFERENCES = 120
# Seeds below are for choosing settings, from here on for measuring.
FIRST_SEED = 1000


def adapted(source: str, seed: int = 0) -> TextModel:
    """The model with fresh LoRA factors, B zero, as a server sends it in the first round."""
    from peft import LoraConfig, get_peft_model

    below = load_model(source, task="causal-lm")
    assert isinstance(below, TextModel)
    torch.manual_seed(seed)
    wrapped: Any = get_peft_model(below.module, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=TARGETS))
    return TextModel(wrapped.get_base_model(), below.tokenizer, below.task, below.name, below.origin)


def trained(model: TextModel, texts: Sequence[str], steps: int, batch: int) -> dict[str, Tensor]:
    """Weights before minus weights after AdamW with torch's defaults, gradients clipped to norm 1."""
    weights = model.parameters()
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    optimiser = torch.optim.AdamW(weights.values(), lr=LR)
    for step in range(steps):
        rows = [model.tokenizer(text)["input_ids"] for text in texts[step * batch : (step + 1) * batch]]
        total = sum(len(row) - 1 for row in rows)
        for row in rows:
            ids = torch.tensor([row])
            logits = model.module(input_ids=ids).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum") / total
            loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    moved = {name: before[name] - weight.detach() for name, weight in weights.items()}
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(before[name])
    return moved


def measure(
    model: TextModel, sentences: Sequence[str], steps: int, batch: int, seed: int, same: bool
) -> dict[str, Any]:
    """One run: a client's update, members and others in one shuffled list, and how the list was told apart."""
    drawn = random.Random(seed).sample(list(sentences), steps * batch + OTHERS + 600)
    members, others = drawn[: steps * batch], drawn[steps * batch : steps * batch + OTHERS]
    rule = ClientRule.parse(f"adamw:steps={steps},batch={batch},lr={LR},clip=1")
    manifest = Manifest(task="causal-lm", family=model.family, model_fingerprint=model.fingerprint, client=rule)
    update = Update(trained(model, members, steps, batch), manifest)
    chance = random.Random(seed)
    asked = chance.sample(members, min(MEMBERS, len(members)))
    listed = [*asked, *others]
    chance.shuffle(listed)
    started = time.monotonic()
    public = drawn[steps * batch + OTHERS :] if same else None
    found = contains(update, model, listed, public=public, references=REFERENCES, seed=seed)
    return {**summarised(found, set(asked)), "seed": seed, "seconds": time.monotonic() - started}


def summarised(found: Containment, members: set[str]) -> dict[str, float]:
    """Area under the curve, members found at 1 % and at no false alarm among the others, and what rates promised."""
    inside = [each for each in found.candidates if each.text in members]
    outside = [each for each in found.candidates if each.text not in members]
    ours, theirs = (torch.tensor([each.score or 0.0 for each in part]) for part in (inside, outside))
    both, first = torch.cat([ours, theirs]), torch.arange(len(ours) + len(theirs)) < len(ours)
    ordered = theirs.sort(descending=True).values

    def recall(rate: float) -> float:
        return float((ours > ordered[int(rate * len(ordered))]).double().mean())

    def below(part: Sequence[Any], level: float) -> float:
        return sum(each.false_alarm_rate <= level for each in part) / len(part)

    return {
        "auc": told_apart(both, first),
        "recall at 1 %": recall(0.01),
        "recall at none": recall(0.0),
        "confirmed of members": below(inside, 0.01),
        "confirmed of others": below(outside, 0.01),
        "others at 5 %": below(outside, 0.05),
        "others with ratio above 1": sum((each.likelihood_ratio or 0) > 1 for each in outside) / len(outside),
        "members with ratio above 1": sum((each.likelihood_ratio or 0) > 1 for each in inside) / len(inside),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a JSON list of sentences")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument(
        "--same-kind", action="store_true", help="public text from the same file, not from WikiText-2"
    )
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    sentences = [text for text in json.loads(given.data.read_text(encoding="utf-8")) if text.strip()]
    kept = json.loads(given.out.read_text()) if given.out.exists() else {"cells": {}}
    cells = kept["cells"]
    model = adapted(given.model)
    kind = f"{given.steps}x{given.batch} {'same kind' if given.same_kind else 'wikitext'}"
    own = cells.setdefault(kind, {})
    for seed in range(given.first_seed, given.first_seed + given.runs):
        if str(seed) in own:
            continue
        own[str(seed)] = measure(model, sentences, given.steps, given.batch, seed, given.same_kind)
        kept = {ABOUT: about(given.model, given.data, before=kept), "cells": cells}
        write_text(given.out, json.dumps(kept, indent=1) + "\n")
        say(f"{kind} seed {seed}: " + ", ".join(f"{k} {v:.3f}" for k, v in own[str(seed)].items() if k != "seed"))
    runs = [own[str(seed)] for seed in range(given.first_seed, given.first_seed + given.runs)]
    for name in ("auc", "recall at 1 %", "confirmed of members", "confirmed of others"):
        say(f"{kind} {name}: {mean_interval([run[name] for run in runs], 0, 1):.3f}")


if __name__ == "__main__":
    main()
