"""What is read of LoRA's gradients beyond their rank: `python -m gradleak.bench.lora --data FILE --out FILE.json`.

Batches of a JSON list of sentences are drawn by consecutive seeds, plain autograd makes the gradient of their mean
loss (one step of SGD, sent as a gradient), and an attacker who knows the batch size reads it. The file keeps every
batch, so that the same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gradleak.attacks.run import attack
from gradleak.attacks.soft.coefficients import portions
from gradleak.bench.near_rank import run
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel
from gradleak.scoring.interval import format_interval, mean_interval
from gradleak.scoring.text import rouge
from gradleak.updates.manifest import Known, Manifest
from gradleak.updates.update import Update

# Settings were chosen on seeds below this one.
FIRST_SEED = 1000
# Tokens that go through the model at once, and the label that is none.
AT_ONCE, IGNORED = 512, -100


def gradient_update(model: TextModel, texts: Sequence[str]) -> Update:
    """The gradient of the mean loss over all predicted tokens, by plain autograd on the library's own loss."""
    rows = [model.tokenizer(text)["input_ids"] for text in texts]
    predicted = sum(len(row) - 1 for row in rows)
    weights = model.parameters()
    for weight in weights.values():
        weight.grad = None
    for some in portions(rows, AT_ONCE):
        longest = max(len(rows[number]) for number in some)
        labels = torch.tensor([rows[n] + [IGNORED] * (longest - len(rows[n])) for n in some])
        loss = model.module(input_ids=labels.clamp_min(0), labels=labels).loss  # what comes after is never seen
        (loss * sum(len(rows[number]) - 1 for number in some) / predicted).backward()
    tensors = {name: weight.grad.clone() for name, weight in weights.items() if weight.grad is not None}
    for weight in weights.values():
        weight.grad = None
    manifest = Manifest(
        task=model.task,
        family=model.family,
        model_fingerprint=model.fingerprint,
        known=Known(batch_size=len(texts)),
    )
    return Update(tensors, manifest)


def measured(model: TextModel, texts: Sequence[str], seed: int, budget: float, name: str) -> dict[str, Any]:
    """One batch attacked, and what of it came back."""
    (found,) = attack(gradient_update(model, texts), model, name, seed=seed, budget=budget)
    rows = [model.tokenizer(text)["input_ids"] for text in texts]
    own = [model.content(row) for row in rows]
    returned = [sentence.tokens for sentence in found.sentences]
    names = model.tokenizer.convert_ids_to_tokens(
        sorted({token for row in rows for token in model.content(row[:-1])})
    )
    wanted = set(map(str, names))
    best = [
        max((rouge(text, sentence.text)["rougeL"] / 100 for sentence in found.sentences), default=0.0)
        for text in texts
    ]
    return {
        "seed": seed,
        "sentences": len(own),
        "whole": sum(row in returned for row in own),
        "given": len(returned),
        "certified": sum(sentence.certified for sentence in found.sentences),
        "certified_wrong": sum(s.certified and s.tokens not in own for s in found.sentences),
        "rouge_l": [round(100 * value, 1) for value in best],
        "tokens": len(wanted),
        "tokens_found": len(wanted & set(found.bag)),
        "tokens_wrong": len(set(found.bag) - wanted),
        "seconds": round(found.seconds, 1),
        "status": found.status,
    }


def summary(cells: Sequence[Mapping[str, Any]]) -> str:
    """The line of all batches. Intervals take sentences as independent, though batches share an attack."""
    total = {
        key: sum(cell[key] for cell in cells)
        for key in (
            *("sentences", "whole", "given", "certified", "certified_wrong"),
            *("tokens", "tokens_found", "tokens_wrong"),
        )
    }
    whole = mean_interval([100.0] * total["whole"] + [0.0] * (total["sentences"] - total["whole"]))
    rouge = mean_interval([value for cell in cells for value in cell["rouge_l"]])
    best = mean_interval([max(cell["rouge_l"]) for cell in cells])
    seconds = sorted(cell["seconds"] for cell in cells)
    return (
        f"{len(cells)} batches: {total['whole']} of {total['sentences']} sentences whole {format_interval(whole)}; "
        f"{total['given']} given; ROUGE-L {format_interval(rouge)}, of the best sentence {format_interval(best)}; "
        f"{total['certified']} certified, {total['certified_wrong']} of them wrong; "
        f"tokens {total['tokens_found']} of {total['tokens']}, {total['tokens_wrong']} wrong; "
        f"median {seconds[len(seconds) // 2]} s, longest {seconds[-1]} s"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.lora")
    parser.add_argument("--data", type=Path, required=True, help="a JSON list of sentences")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--b", type=float, default=0.02, help="spread of the B factors; 0: the first round")
    parser.add_argument("--attack", default="soft")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for a batch")
    given = parser.parse_args(arguments)
    texts = [text for text in json.loads(given.data.read_text(encoding="utf-8")) if text.strip()]
    lora = f"r={given.rank},targets=query+value,b={given.b:g}"
    model = load_text_model(given.model, lora=lora)
    settings = {name: getattr(given, name) for name in ("model", "rank", "b", "attack", "batch_size", "budget")}

    def one(seed: int) -> dict[str, Any]:
        batch = random.Random(seed).sample(texts, given.batch_size)
        return measured(model, batch, seed, given.budget, given.attack)

    run(given.out, given.data, settings, range(given.first_seed, given.first_seed + given.batches), one, summary)


if __name__ == "__main__":
    main()
