"""Which tokens an update points at when noise leaves no proof: a soft form of the span test.

A direction of the first layer's gradient counts by how far it stands above the noise, and a token by how much of it
lies along such directions. The word table's rows, where they are sent, add what they stand out by.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.parts.candidates import CHUNK, first_inputs
from gradleak.attacks.parts.certify import attention_parts
from gradleak.attacks.parts.noise import EDGE, tail_level
from gradleak.models.target import TargetModel
from gradleak.update import Update

# A row of the word table stands out if it is so many standard deviations larger than noise would make it.
CLEAR_ROW = 6.0


@dataclass(frozen=True)
class Hints:
    """The tokens an update may hold, and for every position the likeliest ones, best first."""

    tokens: Tensor
    places: Tensor


def hints(update: Update, model: TargetModel, length: int, sentences: int, keep: int) -> Hints | None:
    """`keep` tokens a position and sentence for positions up to a length; None if no direction rises above noise."""
    directions = leading_directions(update, model)
    if directions is None:
        return None
    words = model.text_tokens.nonzero()[:, 0]
    scores = torch.cat([_scores(model, part, length, directions) for part in words.split(max(1, CHUNK // length))])
    clear = _clear_rows(update, model)
    if clear is not None:
        scores = scores + clear[words][:, None]
    best = words[scores.topk(min(len(words), keep * sentences), dim=0).indices].T
    tokens = best.unique() if clear is None else torch.cat([best.flatten(), words[clear[words] > 0]]).unique()
    return Hints(tokens, best)


def leading_directions(update: Update, model: TargetModel) -> Tensor | None:
    """Directions the first layer's inputs have, (directions, width), each as long as it is sure."""
    parts = [part for part in attention_parts(model, 0) if part.weight_name in update.tensors]
    if not parts:
        return None
    stacked = torch.cat([part.of(update.tensors[part.weight_name]) for part in parts]).double()
    _, sizes, directions = torch.linalg.svd(stacked, full_matrices=False)
    rows, columns = stacked.shape
    edge = EDGE * tail_level(sizes, stacked.shape) * (rows**0.5 + columns**0.5)
    sure = 1 - (edge / sizes.clamp_min(1e-300)).square()
    kept = sure > 0
    return (directions[kept] * sure[kept].sqrt()[:, None]).to(model.word_table) if bool(kept.any()) else None


def _scores(model: TargetModel, tokens: Tensor, length: int, directions: Tensor) -> Tensor:
    inputs = F.normalize(first_inputs(model, tokens, length), dim=-1)
    return (inputs @ directions.T).square().sum(dim=-1)


def _clear_rows(update: Update, model: TargetModel) -> Tensor | None:
    """For every token 1 if its row of the word table stands out, else 0; None if the rows tell nothing.

    Most tokens are in no batch, so the median row shows what noise alone gives.
    """
    table = update.tensors.get(model.adapter.parameter_of(model.adapter.words))
    if table is None or model.task == "causal-lm":  # there every row takes part in every prediction
        return None
    sizes = table.norm(dim=1)
    noise = sizes.median()
    clear = sizes > noise * (1 + CLEAR_ROW / (2 * table.shape[1]) ** 0.5) + 1e-6 * sizes.max()
    return clear.float() if bool(clear.any()) else None
