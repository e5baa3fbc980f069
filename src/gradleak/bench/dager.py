"""`exact` beside DAGER's own code: `python -m gradleak.bench.dager --dager FOLDER --data FILE --out FILE.json`.

FOLDER is a checkout of the published code, whose spans, tests and search are called as they are; only the model it
reads is ours, a language model with rotary positions. Batches of a list of sentences (JSON, or a line each) are drawn
by consecutive seeds, and both read the same update in turn. What counts is the time of the processor: run it with
OMP_NUM_THREADS=1. DAGER begins from a start token, so where a model has none it is given each sentence's first one;
it does not look for the last token, which is never read but only predicted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradleak.bench.local_steps import sentences
from gradleak.bench.near_rank import measured, run
from gradleak.clients.text import Client
from gradleak.core.errors import GradleakError
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Rules were chosen on seeds below this one.
FIRST_SEED = 5000
# DAGER's defaults: thresholds of both layers, layers whose ranks are compared, dimensions left out of a full rank.
FIRST_LAYER, SECOND_LAYER, RANKED, CUT = 1e-5, 1e-3, 10, 20


class Wrapped:
    """What DAGER asks of a model, answered by one of ours."""

    def __init__(self, model: TextModel, start: int) -> None:
        self.base, self.start_token = model.module.base_model, start
        padding = model.tokenizer.pad_token_id
        self.pad_token = -1 if padding is None else padding

    def has_rope(self) -> bool:
        return True

    def has_bos(self) -> bool:
        return True

    def get_embeddings(self) -> Tensor:
        """What the first layer reads of every token of the vocabulary."""
        return self.base.layers[0].input_layernorm(self.base.embed_tokens.weight)

    def get_layer_inputs(
        self, sentences: Tensor, attention_mask: Tensor | None = None, layers: int = 1
    ) -> list[Tensor]:
        """What the layers behind the first read of some beginnings."""
        states = self.base.embed_tokens(sentences.long())
        length = states.shape[1]
        turned = self.base.rotary_emb(states, torch.arange(length)[None])
        hidden = torch.full((length, length), torch.finfo(states.dtype).min).triu(1)[None, None]
        read = []
        for layer, following in zip(self.base.layers[:layers], self.base.layers[1:], strict=False):
            states = layer(states, attention_mask=hidden, position_embeddings=turned)
            read.append(following.input_layernorm(states))
        return read


class Dager:
    """The published attack on updates of one of our models."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "utils" / "filtering_decoder.py").exists():
            raise GradleakError(f"{folder} is no checkout of DAGER's code: utils/filtering_decoder.py is missing")
        sys.path.insert(0, str(folder))
        self.search = importlib.import_module("utils.filtering_decoder").filter_decoder
        self.functional = importlib.import_module("utils.functional")

    @torch.no_grad()
    def read(self, model: TextModel, update: Update, size: int, start: int) -> list[list[int]]:
        """The sentences that it finds."""
        names = [layer["query"].weight_name for layer in model.adapter.parts]
        gradients = [update.tensors[name] for name in names]
        rank = max(int(np.linalg.matrix_rank(gradient.numpy())) for gradient in gradients[:RANKED])
        rank = min(rank, model.width - CUT)
        spans = [self.functional.get_layer_decomp(gradient, B=rank)[1] for gradient in gradients[:2]]
        wrapped = Wrapped(model, start)
        (tokens,) = self.functional.get_top_B_in_span(spans[0], wrapped.get_embeddings(), size, FIRST_LAYER, "l2")
        settings = SimpleNamespace(
            pad="left",
            device="cpu",
            dist_norm="l2",
            batch_size=size,
            defense_noise=None,
            parallel=1000,
            distinct_thresh=0.7,
            l2_span_thresh=SECOND_LAYER,
            reduce_incorrect=0,
        )
        with quiet():
            found, scores, *_ = self.search(settings, wrapped, spans, [tokens.tolist()])
        return [own for own, score in zip(found, scores, strict=True) if score < SECOND_LAYER]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Print nothing, progress neither."""
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def one(model: TextModel, dager: Dager, texts: Sequence[str], size: int, budget: float, seed: int) -> dict[str, Any]:
    """The same update read by both."""
    chosen = random.Random(seed).sample(list(texts), size)
    update = Client(model).update(chosen)
    rows = model.encode(chosen).sentences()
    ours = measured(model, update, chosen, seed, budget)
    started, found = time.process_time(), []
    for start in sorted({row[0] for row in rows}):
        found += dager.read(model, update, size, start)
    spent = time.process_time() - started
    return {
        **ours,
        "tokens": sum(len(row) for row in rows),
        "dager_processor_seconds": round(spent, 3),
        "dager_whole_but_the_last_token": sum(row[:-1] in found for row in rows),
        "dager_given": len(found),
    }


def summary(cells: Sequence[Mapping[str, Any]]) -> str:
    """The line of all batches."""
    ours, theirs = ([cell[key] for cell in cells] for key in ("processor_seconds", "dager_processor_seconds"))
    ratios = sorted(their / own for own, their in zip(ours, theirs, strict=True))
    total = {key: sum(cell[key] for cell in cells) for key in ("sentences", "whole", "certified")}
    told = sum(cell["dager_whole_but_the_last_token"] for cell in cells)
    return (
        f"{len(cells)} batches: ours {statistics.mean(ours):.2f} s of the processor, {total['whole']} of "
        f"{total['sentences']} whole, {total['certified']} certified; DAGER {statistics.mean(theirs):.2f} s, {told} "
        f"whole but for the last token; {sum(theirs) / sum(ours):.2f} times as fast in all, "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}, median {statistics.median(ratios):.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.dager")
    parser.add_argument("--dager", type=Path, required=True, help="a checkout of DAGER's published code")
    parser.add_argument("--data", type=Path, required=True, help="a JSON list of sentences, or a text file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds for a batch of ours")
    given = parser.parse_args(arguments)
    texts, model, dager = sentences(given.data), load_text_model(given.model), Dager(given.dager)
    warm = False

    def both(seed: int) -> dict[str, Any]:
        nonlocal warm
        if not warm:  # the first reading of a process pays for much that later ones have
            one(model, dager, texts, given.batch_size, given.budget, seed)
            warm = True
        return one(model, dager, texts, given.batch_size, given.budget, seed)

    settings = {"model": given.model, "batch_size": given.batch_size, "threads": torch.get_num_threads()}
    run(given.out, given.data, settings, range(given.first_seed, given.first_seed + given.batches), both, summary)


if __name__ == "__main__":
    main()
