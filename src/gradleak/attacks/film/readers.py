"""How likely each token of a bag is as the next: by the attacked language model alone, or by the update too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.film.attribution import Attribution, CachedReading
from gradleak.models.text import TextModel


class ModelReader:
    """The model alone, with a cache; shares are 0. Probabilities are those among the bag."""

    def __init__(self, model: TextModel, bag: Tensor) -> None:
        self._model = model
        self._bag = bag
        self._cache: Any = None

    @property
    def cache(self) -> Any:
        """Keys and values of what the model has read so far, a row per sentence."""
        return self._cache

    def first(self, openings: Tensor) -> tuple[Tensor, Tensor]:
        from transformers import DynamicCache

        self._cache = DynamicCache()
        return self._judge(openings)

    def further(self, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        self._cache.batch_select_indices(rows)
        return self._judge(tokens[:, None])

    @torch.no_grad()
    def _judge(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        base = self._model.module.base_model
        state = base(input_ids=ids, past_key_values=self._cache, use_cache=True).last_hidden_state[:, -1]
        log_probs = self._model.output_logits(state, self._bag).log_softmax(dim=1)
        return log_probs, torch.zeros_like(log_probs)


class UpdateReader:
    """The model and its copy that stepped along the inverted update: their difference gives the shares."""

    def __init__(self, attribution: Attribution, bag: Tensor) -> None:
        self._attribution = attribution
        self._bag = bag
        self._reading: CachedReading = attribution.reading()

    @property
    def cache(self) -> Any:
        """Keys and values of what the plain model has read so far, a row per sentence."""
        return self._reading.cache

    def first(self, openings: Tensor) -> tuple[Tensor, Tensor]:
        self._reading = self._attribution.reading()
        return self._judge(openings)

    def further(self, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        self._reading.keep(rows)
        return self._judge(tokens[:, None])

    @torch.no_grad()
    def _judge(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        model = self._attribution.model
        states = (state[:, -1] for state in self._reading.states(ids))
        plain, moved = (model.output_logits(state, self._bag).log_softmax(dim=1) for state in states)
        shares = (moved - plain) / self._attribution.unit
        if self._reading.fits is not None:  # nothing follows a token that was not read in the batch
            plain = plain.masked_fill(~self._reading.fits[:, None], float("-inf"))
        return plain, shares
