"""Our LAMP beside the published code, sentence by sentence, at equal steps, starts, discrete phases and prior.

    git clone https://github.com/eth-sri/lamp FOLDER
    python tests/conformance/published_lamp.py --code FOLDER --data cola_train.tsv --sentences 20 --out FILE.json

Both attack the gradient of one sentence in the same model, know its label and its length, and ask the same prior
about orders. Nothing of the published code is changed: what it imports and this machine need not have is put in its
place, and the embedding norm it is to keep to, an option of it, is the model's own. Both answers are scored without
special tokens. The file keeps every sentence, so that the same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from gradleak import Client, TextModel, attack, load_model
from gradleak.attacks.search.vocabulary import Vocabulary
from gradleak.bench.near_rank import run
from gradleak.data.texts import Row, read_data
from gradleak.priors.base import Prior, load_prior
from gradleak.scoring.interval import format_interval, mean_interval, student
from gradleak.scoring.text import rouge
from gradleak.updates.manifest import KNOWABLE

FIRST_SEED = 500
METRICS = ("rouge1", "rouge2", "rougeL")
NAMES_GONE = ("AdamW", "LogitsProcessor", "BeamSearchScorer")


class Published:
    """The published attack on one sentence at a time."""

    def __init__(self, code: Path, model: TextModel, prior: Prior, steps: int, starts: int) -> None:
        sys.path.insert(0, str(code))
        sys.argv = [
            *("attack.py", "--dataset", "cola", "--split", "test", "--loss", "cos", "--n_inputs", "1"),
            *("--device", "cpu", "--coeff_perplexity", "0.2", "--coeff_reg", "1", "--lr", "0.01"),
            *("--lr_decay", "0.89", "--n_steps", str(steps), "--init_candidates", str(starts)),
            *("--init_size", str(Vocabulary.of(model).mean_norm)),
        ]
        transformers = importlib.import_module("transformers")
        for name in NAMES_GONE:
            if not hasattr(transformers, name):
                setattr(transformers, name, None)
        sys.modules["datasets"] = _module("datasets", load_metric=None, load_dataset=None)
        sys.modules["nlp_utils"] = _module("nlp_utils", load_gpt2_from_dict=None)
        self._code, self._model, self._prior = importlib.import_module("attack"), model, prior

    def read(self, row: Row, seed: int) -> str:
        """What it reads from the gradient of a sentence."""
        np.random.seed(seed)
        torch.manual_seed(seed)
        sample = ([row.text], torch.tensor([row.label]))
        metric = SimpleNamespace(compute=_no_rouge)
        tokenizer = self._model.tokenizer
        with contextlib.redirect_stdout(io.StringIO()):
            (text,), _ = self._code.reconstruct(
                self._code.args, "cpu", sample, metric, tokenizer, _AsPublished(self._prior, self._model),
                self._model.module,
            )  # fmt: skip
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return str(self._model.decode([token for token in ids if token not in tokenizer.all_special_ids]))


class _AsPublished:
    """Our prior where the published code calls its own language model."""

    def __init__(self, prior: Prior, model: TextModel) -> None:
        self._prior, self._model = prior, model
        self._special = set(model.tokenizer.all_special_ids)
        self.device = "cpu"

    def __call__(self, input_ids: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        rows = [[token for token in row if token not in self._special] for row in input_ids.tolist()]
        return SimpleNamespace(loss=self._prior.nll(rows).mean())

    def get_input_embeddings(self) -> torch.nn.Module:
        return self._model.module.get_input_embeddings()


def _module(name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(content)
    return made


def _no_rouge(**_: Any) -> dict[str, Any]:
    """A single sentence needs no assignment by ROUGE."""
    return {"rouge1": SimpleNamespace(mid=SimpleNamespace(fmeasure=0.0))}


def scored(truth: str, read: str, started: float) -> dict[str, float]:
    scores = rouge(truth, read)
    return {
        **{metric: round(scores[metric], 2) for metric in METRICS},
        "processor_seconds": round(time.process_time() - started, 1),
    }


def summary(cells: Sequence[Mapping[str, Any]]) -> str:
    """Means of both, and the mean of differences, sentence by sentence."""
    lines = [f"{len(cells)} sentences"]
    for metric in METRICS:
        ours, theirs = ([cell[who][metric] for cell in cells] for who in ("ours", "published"))
        gained = [a - b for a, b in zip(ours, theirs, strict=True)]
        lines.append(
            f"{metric}: ours {format_interval(mean_interval(ours), 1)}, published "
            f"{format_interval(mean_interval(theirs), 1)}, ours minus published "
            f"{format_interval(student(gained, -100.0, 100.0), 1, 1)}"
        )
    spent = {who: sum(cell[who]["processor_seconds"] for cell in cells) for who in ("ours", "published")}
    lines.append(f"processor seconds: ours {spent['ours']:.0f}, published {spent['published']:.0f}")
    return "; ".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--code", type=Path, required=True, help="a checkout of the published code")
    parser.add_argument("--data", type=Path, required=True, help="CoLA's table")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--prior", default="ngram", help="as `-o prior=` of lamp-cos; ngram is the quickest")
    parser.add_argument("--sentences", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--starts", type=int, default=100, help="random starts, and as many orders of the best")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = read_data(given.data, "4", "2")
    model = load_model(given.model)
    prior = load_prior(given.prior, model)
    assert prior is not None
    published = Published(given.code.resolve(), model, prior, given.steps, given.starts)

    def one(seed: int) -> dict[str, Any]:
        (row,) = random.Random(seed).sample(rows, 1)
        (sentence,) = model.encode([row.text]).sentences()
        truth = model.decode(model.content(sentence))
        update = Client(model, known=KNOWABLE).update([row.text], labels=[row.label])
        began = time.process_time()
        (found,) = attack(
            update, model, "lamp-cos", seed=seed, preset="paper", prior=given.prior, steps=given.steps,
            init_draws=given.starts, init_orders=given.starts,
        )  # fmt: skip
        ours = scored(truth, found.sentences[0].text, began)
        began = time.process_time()
        return {
            "seed": seed,
            "tokens": len(sentence),
            "ours": ours,
            "published": scored(truth, published.read(row, seed), began),
        }

    settings = {"model": given.model, "prior": given.prior, "steps": given.steps, "starts": given.starts}
    run(given.out, given.data, settings, range(FIRST_SEED, FIRST_SEED + given.sentences), one, summary)


if __name__ == "__main__":
    main()
