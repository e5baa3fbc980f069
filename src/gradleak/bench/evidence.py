"""What single pieces of evidence show of known batches: `python -m gradleak.bench.evidence KIND --data FILE …`.

Attacks rest on tests of single tokens, states and beginnings. Here each is asked of the truth and of what is nearly
the truth, so that the figures of the pages that explain them can be had again. Batches are drawn by consecutive
seeds; the file keeps every batch, and the same command goes on where it was ended. Kinds:

- distances: how far true inputs lie from the first layer's span, as a multiple of what rounding predicts; and the
  energies of true sentences, and of those with one other token of the batch, over the limit of a certificate.
- rows: tokens whose rows of a tied table point against the states, of those that were predicted; and how many counts
  are right.
- next: how often the right next token is the first, or among the first four, of the batch's tokens, by the model
  alone and with the share of the update that it explains; after true beginnings.
- beginnings: what true beginnings, and those with one other token, leave over at a token that occurs once.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gradleak.attacks.crowded.attended import Attended
from gradleak.attacks.evidence.rows import loudest_rows, predicted_rows
from gradleak.attacks.evidence.tokens import tokens_of
from gradleak.attacks.film.attack import ALONE_SHARE, ALONE_TOKENS, ALONE_WEIGHT
from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.film.beam import LEAST_SHARE, MOST_SHARE, WEIGHT
from gradleak.attacks.film.single import output_rows
from gradleak.attacks.spans.candidates import first_inputs
from gradleak.attacks.spans.certify import Certifier, attention_parts, joint_span
from gradleak.bench.adamw import read_rows
from gradleak.bench.local_steps import sentences
from gradleak.bench.near_rank import FIRST_SEED, run
from gradleak.bench.noise import BENCH
from gradleak.clients.text import Client
from gradleak.core.errors import GradleakError
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel
from gradleak.updates.gradient import as_gradient
from gradleak.updates.update import Update

Cell = dict[str, Any]
# Sentences of a batch whose next tokens are asked for, and other tokens that are tried at a place.
ASKED, OTHERS = 16, 4
FEW = 4


def distances(model: TextModel, update: Update, rows: Sequence[list[int]], rng: random.Random) -> Cell:
    """Of an encoder."""
    span = joint_span(update.tensors, attention_parts(model, 0))
    if span is None:
        raise GradleakError("the first layer's gradients have no span; give a smaller batch")
    ratios: list[float] = []
    for row in rows:
        inputs = first_inputs(model, torch.tensor(row, device=model.device), len(row))
        own = inputs[range(len(row)), range(len(row))]
        ratios += (span.distances(own) / span.floors(own)).tolist()
    certifier, words = Certifier(model, update), sorted({token for row in rows for token in model.content(row)})
    right = [certifier.check(row) for row in rows]
    wrong = [certifier.check(other) for row in rows for other in _changed(row, words, rng)]
    return {
        "inputs": len(ratios),
        "of_prediction": {"median": statistics.median(ratios), "most": max(ratios)},
        "right": {"most": max(each.energy / each.threshold for each in right)},
        "wrong": {"count": len(wrong), "least": min(each.energy / each.threshold for each in wrong)},
    }


def _changed(row: Sequence[int], words: Sequence[int], rng: random.Random) -> list[list[int]]:
    """The same sentence with one other token of the batch, some times; special tokens stay."""
    found = []
    for _ in range(OTHERS):
        place = rng.randrange(1, len(row) - 1)
        token = rng.choice([word for word in words if word != row[place]])
        found.append([*row[:place], token, *row[place + 1 :]])
    return found


def tied_rows(model: TextModel, update: Update, rows: Sequence[list[int]], rng: random.Random) -> Cell:
    """Of a language model whose token embedding is its output layer."""
    pull = predicted_rows(update.tensors[output_rows(model)])
    named = set(pull.nonzero()[:, 0].tolist())
    wanted = Counter(token for row in rows for token in row[1:])
    counts = tokens_of(model, update).counts
    return {
        "predicted": len(wanted),
        "named": len(named & wanted.keys()),
        "wrong": len(named - {token for row in rows for token in row}),  # first tokens are read, not predicted
        "counted": len(counts),
        "counts_right": sum(wanted[token] == count for token, count in counts.items()),
    }


def next_tokens(model: TextModel, update: Update, rows: Sequence[list[int]], rng: random.Random) -> Cell:
    """Of a language model; through noise among the loudest rows, as `film` does it then."""
    attribution = Attribution(model, update)
    wanted = {token for row in rows for token in row}
    weight, most = WEIGHT, MOST_SHARE
    if attribution.noise:
        wanted |= set(loudest_rows(update.tensors[output_rows(model)], ALONE_TOKENS).tolist())
        weight, most = ALONE_WEIGHT, ALONE_SHARE
    bag = torch.tensor(sorted(wanted), device=model.device)
    columns = {token: column for column, token in enumerate(bag.tolist())}
    places, hits = 0, Counter[str]()
    for row in rows[:ASKED]:
        ids = torch.tensor([row[:-1]], device=model.device)
        with torch.no_grad():
            plain = model.output_logits(attribution.reading().states(ids)[0][0], bag).log_softmax(dim=1)
        shares = attribution.following(row[:-1], bag).clamp(-LEAST_SHARE, most)
        # The first state is nearly the same whatever stands there, so second tokens are not asked for.
        for place in range(1, len(row) - 1):
            right, places = columns[row[place + 1]], places + 1
            for name, values in (("model", plain[place]), ("shares", plain[place] + weight * shares[place])):
                rank = int((values > values[right]).sum())
                hits[f"{name}_first"] += rank == 0
                hits[f"{name}_among"] += rank < FEW
    return {"bag": len(bag), "places": places, **hits}


def beginnings(model: TextModel, update: Update, rows: Sequence[list[int]], rng: random.Random) -> Cell:
    """Of a model with rotary positions; at every token that is read once in the batch."""
    read = Counter(token for row in rows for token in row[:-1])
    tokens = sorted(read)
    number = {token: place for place, token in enumerate(tokens)}
    attended = Attended(model, update.tensors, tokens, max(map(len, rows)))
    right, wrong = [], []
    for row in rows:
        own = [number[token] for token in row[:-1]]
        for end in range(1, min(len(own), attended.longest)):
            if read[row[end]] != 1 or not bool(attended.clear[own[end]]):
                continue
            right.append(attended.left_over(own[: end + 1]))
            other = own[: end + 1]
            other[rng.randrange(end)] = rng.randrange(len(tokens))
            if other != own[: end + 1]:
                wrong.append(attended.left_over(other))
    quantiles = statistics.quantiles(wrong, n=10)
    return {
        "tested": len(right),
        "right": {"median": statistics.median(right), "most": max(right)},
        "wrong": {"count": len(wrong), "tenth": quantiles[0], "median": quantiles[4]},
    }


Measure = Callable[[TextModel, Update, Sequence[list[int]], random.Random], Cell]
KINDS: dict[str, Measure] = {
    "distances": distances,
    "rows": tied_rows,
    "next": next_tokens,
    "beginnings": beginnings,
}


def summary(cells: Sequence[Mapping[str, Any]]) -> str:
    """Sums of what is counted, and the ranges of what is not."""
    parts = []
    for name, value in cells[0].items():
        if name == "seed":
            continue
        values = [cell[name] for cell in cells]
        if isinstance(value, dict):
            ranges = (
                f"{key} {min(v[key] for v in values):.3g} to {max(v[key] for v in values):.3g}" for key in value
            )
            parts.append(f"{name}: {', '.join(ranges)}")
        else:
            parts.append(f"{name} {sum(values)}")
    return f"{len(cells)} batches: {'; '.join(parts)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.evidence")
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("--data", type=Path, required=True, nargs="+", help="a .tsv table, or lists of sentences")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--sigma", type=float, default=0.0, help="noise that the client adds to its gradient")
    parser.add_argument("--text-column", type=int, default=4)
    parser.add_argument("--label-column", type=int, default=2)
    given = parser.parse_args(arguments)
    if given.data[0].suffix == ".tsv":
        rows = [row for path in given.data for row in read_rows(path, given.text_column, given.label_column)]
    else:
        rows = [(text, 0) for path in given.data for text in sentences(path)]
    model = load_text_model(given.model)
    defences = [f"noise:sigma={given.sigma:g}"] if given.sigma else []

    def one(seed: int) -> Cell:
        texts, labels = zip(*random.Random(seed).sample(rows, given.batch_size), strict=True)
        classes = list(labels) if model.goal.labelled else None
        update = Client(model, defenses=defences).update(list(texts), classes, secret=BENCH.child(seed))
        encoded = [list(row) for row in model.encode(list(texts)).sentences()]
        return {
            "seed": seed,
            **KINDS[given.kind](model, as_gradient(update, model), encoded, random.Random(seed)),
        }

    settings = {name: getattr(given, name) for name in ("kind", "model", "batch_size", "sigma")}
    run(given.out, given.data, settings, range(given.first_seed, given.first_seed + given.batches), one, summary)


if __name__ == "__main__":
    main()
