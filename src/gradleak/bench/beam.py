"""Beam search among a bag of tokens against the plain way: all of the vocabulary, and no cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.film.beam import BeamSettings, Grown, NGrams, Reader, search
from gradleak.attacks.film.readers import ModelReader
from gradleak.bench.ratio import Ratio, compare
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel


@dataclass(frozen=True)
class BeamBench:
    """The ratio of times a token, and tokens a second of both."""

    ratio: Ratio

    @property
    def tokens_per_second(self) -> tuple[float, float]:
        return 1 / self.ratio.slow_seconds, 1 / self.ratio.fast_seconds


class WholeReader:
    """The plain way: every sentence goes through the whole model again, and all logits are computed."""

    def __init__(self, model: TextModel, bag: Tensor) -> None:
        self._model, self._bag = model, bag
        self._ids = torch.empty(0, 0, dtype=torch.long)

    def first(self, openings: Tensor) -> tuple[Tensor, Tensor]:
        self._ids = openings
        return self._judge()

    def further(self, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        self._ids = torch.cat([self._ids[rows], tokens[:, None]], dim=1)
        return self._judge()

    @torch.no_grad()
    def _judge(self) -> tuple[Tensor, Tensor]:
        logits = self._model.logits(ids=self._ids, mask=torch.ones_like(self._ids))[:, -1]
        log_probs = logits[:, self._bag].log_softmax(dim=1)
        return log_probs, torch.zeros_like(log_probs)


def bench_beam(name: str, beams: int, bag_size: int, length: int, seconds: float) -> BeamBench:
    """Both ways in turns, on the same search; they must find the same sentences."""
    model = load_text_model(name, task="causal-lm")
    usual = model.text_tokens.nonzero()[:, 0]
    order = torch.randperm(len(usual), generator=torch.Generator().manual_seed(0))
    bag = usual[order[:bag_size]].sort().values
    slow, fast = (
        _grown(WholeReader(model, bag), bag, beams, length),
        _grown(ModelReader(model, bag), bag, beams, length),
    )
    if [one.tokens for one in slow] != [one.tokens for one in fast]:
        raise GradleakError("the two ways found different sentences: this is a bug, please report it")
    tokens = beams * (length - 1)
    return BeamBench(
        compare(
            lambda: _grown(WholeReader(model, bag), bag, beams, length),
            lambda: _grown(ModelReader(model, bag), bag, beams, length),
            slow_units=tokens,
            fast_units=tokens,
            seconds=seconds,
        )
    )


def _grown(reader: Reader, bag: Tensor, beams: int, length: int) -> list[Grown]:
    """As many sentences as beams, all of one length."""
    return search(
        reader,
        bag,
        [Grown((int(token),), (), ()) for token in bag[:beams]],
        BeamSettings(beams, 2, length, 0.0),
        ends=lambda token: False,
        forbidden=NGrams(2),
        budget=Budget(),
    )
