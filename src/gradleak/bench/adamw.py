"""What can be read from AdamW's updates: `python -m gradleak.bench.adamw --data FILE --batch-size 4 --out FILE.json`.

Sentences of a table such as CoLA's are drawn by consecutive seeds, a plain torch loop trains the model on them with
AdamW as torch sets it, and the update is attacked by an attacker who knows the batch size. With more sentences than
the batch size there are several steps, of which `bag` reads tokens. `--sgd 5e-3` trains with torch's SGD at that step
size instead. The file keeps every batch, so that the same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from gradleak.attacks.run import attack
from gradleak.bench.near_rank import run
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel
from gradleak.scoring.interval import format_interval, mean_interval
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.manifest import Known, Manifest
from gradleak.updates.update import Update

RATE, DECAY = 5e-5, 0.01
# Settings were chosen on seeds below this one.
FIRST_SEED = 1000

Rows = Sequence[tuple[str, int]]


def trained_update(model: TextModel, rows: Rows, batch: int, sgd: float | None = None) -> Update:
    """What a client sends after an epoch over these sentences of torch's AdamW, or of SGD of this step size."""
    local = model.copied().module.eval()
    weights = dict(local.named_parameters())
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    optimiser: torch.optim.Optimizer = torch.optim.AdamW(weights.values(), lr=RATE, weight_decay=DECAY)
    rule = ClientRule(name="adamw", batch=batch, lr=RATE, wd=DECAY)
    if sgd is not None:
        optimiser = torch.optim.SGD(weights.values(), lr=sgd)
        rule = ClientRule(name="fedavg", batch=batch, lr=sgd)
    for first in range(0, len(rows), batch):
        texts, labels = zip(*rows[first : first + batch], strict=True)
        encoded = model.encode(list(texts))
        logits = local(input_ids=encoded.ids, attention_mask=encoded.mask.long()).logits
        optimiser.zero_grad()
        F.cross_entropy(logits, torch.tensor(labels)).backward()
        optimiser.step()
    moved = {name: before[name] - weight.detach() for name, weight in weights.items() if weight.grad is not None}
    known = Known(batch_size=len(rows))
    manifest = Manifest(
        task=model.task, family=model.family, model_fingerprint=model.fingerprint, client=rule, known=known
    )
    return Update(moved, manifest)


def measured(model: TextModel, update: Update, rows: Rows, seed: int, budget: float, name: str) -> dict[str, Any]:
    """The update of a batch attacked, and what of it came back."""
    (found,) = attack(update, model, name, seed=seed, budget=budget)
    own = [model.content(row) for row in model.encode([text for text, _ in rows]).sentences()]
    returned = [sentence.tokens for sentence in found.sentences]
    wrong = [sentence for sentence in found.sentences if sentence.tokens not in own]
    wanted = set(map(str, model.tokenizer.convert_ids_to_tokens(sorted({token for row in own for token in row}))))
    return {
        "seed": seed,
        "sentences": len(own),
        "whole": sum(row in returned for row in own),
        "wrong": len(wrong),
        "certified": sum(sentence.certified for sentence in found.sentences),
        "certified_wrong": sum(sentence.certified for sentence in wrong),
        "tokens": len(wanted),
        "tokens_found": len(wanted & set(found.bag)),
        "tokens_wrong": len(set(found.bag) - wanted),
        "seconds": round(found.seconds, 1),
        "status": found.status,
        "notes": found.notes,
    }


def summary(cells: Sequence[Mapping[str, Any]]) -> str:
    """The table line of all batches. Intervals take sentences as independent, though batches share an attack."""
    count = sum(cell["sentences"] for cell in cells)
    whole = sum(cell["whole"] for cell in cells)
    interval = mean_interval([100.0] * whole + [0.0] * (count - whole))
    tokens = {key: sum(cell[key] for cell in cells) for key in ("tokens", "tokens_found", "tokens_wrong")}
    certified = sum(cell["certified"] for cell in cells), sum(cell["certified_wrong"] for cell in cells)
    seconds = sorted(cell["seconds"] for cell in cells)
    return (
        f"{len(cells)} batches: {whole} of {count} sentences whole {format_interval(interval)}, "
        f"{sum(cell['wrong'] for cell in cells)} wrong; {certified[0]} certified, {certified[1]} of them wrong; "
        f"tokens {tokens['tokens_found']} of {tokens['tokens']}, {tokens['tokens_wrong']} wrong; "
        f"median {seconds[len(seconds) // 2]} s, longest {seconds[-1]} s"
    )


def read_rows(path: Path, text_column: int, label_column: int) -> list[tuple[str, int]]:
    """Sentences and labels of a table with tabs and no heading, columns counted from 1."""
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line]
    return [(line[text_column - 1], int(line[label_column - 1])) for line in lines]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.adamw")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--attack", default="exact")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--sentences", type=int, help="of a client; more than the batch size: several steps")
    parser.add_argument("--sgd", type=float, metavar="LR", help="train with SGD of this step size")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for a batch")
    parser.add_argument("--text-column", type=int, default=4)
    parser.add_argument("--label-column", type=int, default=2)
    given = parser.parse_args(arguments)
    rows, model = read_rows(given.data, given.text_column, given.label_column), load_text_model(given.model)
    names = ("model", "attack", "batch_size", "sentences", "budget")
    settings = {name: getattr(given, name) for name in names}
    if given.sgd is not None:
        settings["client"] = f"fedavg:batch={given.batch_size},lr={given.sgd:g}"

    def one(seed: int) -> dict[str, Any]:
        drawn = random.Random(seed).sample(rows, given.sentences or given.batch_size)
        update = trained_update(model, drawn, given.batch_size, given.sgd)
        return measured(model, update, drawn, seed, given.budget, given.attack)

    run(given.out, given.data, settings, range(given.first_seed, given.first_seed + given.batches), one, summary)


if __name__ == "__main__":
    main()
