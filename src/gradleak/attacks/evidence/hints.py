"""Which tokens an update points at when noise leaves no proof: a soft form of the span test.

A direction of the first layer's gradient counts by how far it stands above the noise, and a token by how much of it
lies along such directions. Where the embeddings' gradients are sent, the rows that stand out show more: which tokens
there were, and by the mixture of rows also where.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.evidence.noise import EDGE, tail_level
from gradleak.attacks.evidence.rows import present_rows
from gradleak.attacks.spans.candidates import CHUNK, first_inputs
from gradleak.attacks.spans.certify import attention_parts
from gradleak.attacks.spans.unmix import unmix
from gradleak.models.text import TextModel
from gradleak.updates.update import Update


@dataclass(frozen=True)
class Hints:
    """The tokens an update may hold, and for every position the likeliest tokens, best first."""

    tokens: Tensor
    places: Tensor


def hints(update: Update, model: TextModel, length: int, sentences: int, keep: int) -> Hints | None:
    """`keep` tokens per position and sentence, for positions up to a length; None if the update points at nothing.

    A token's score at a position is the part of its input along the leading directions, plus, where rows of the
    token embedding stand out, 1 for standing out and the share of the row that the position's own row explains.
    """
    text_tokens = model.text_tokens.nonzero()[:, 0]
    directions, clear = leading_directions(update, model), clear_rows(update, model)
    if directions is None and clear is None:
        return None
    scores = torch.zeros(len(text_tokens), length, device=text_tokens.device)
    if directions is not None:
        parts = text_tokens.split(max(1, CHUNK // length))
        scores = torch.cat([_along(model, part, length, directions) for part in parts])
    tokens = text_tokens[:0]
    if clear is not None:
        tokens = clear[torch.isin(clear, text_tokens)]
        scores[torch.searchsorted(text_tokens, tokens)] += 1 + _position_shares(update, model, tokens, length).to(
            scores
        )
    best = text_tokens[scores.topk(min(len(text_tokens), keep * sentences), dim=0).indices].T
    return Hints(torch.cat([best.flatten(), tokens]).unique(), best)


def points_anywhere(update: Update, model: TextModel) -> bool:
    """Whether there is anything to take hints from."""
    return leading_directions(update, model) is not None or clear_rows(update, model) is not None


def leading_directions(update: Update, model: TextModel) -> Tensor | None:
    """Directions of the first layer's inputs, (directions, width), the surer the longer."""
    carriers = [carrier for carrier in (p.carrier(update.tensors) for p in attention_parts(model, 0)) if carrier]
    matrices = [carrier.matrix for carrier in carriers if carrier.map is None] or _keys(update, model)
    if not matrices:
        return None
    stacked = torch.cat(matrices).double()
    _, sizes, directions = torch.linalg.svd(stacked, full_matrices=False)
    rows, columns = stacked.shape
    edge = EDGE * tail_level(sizes, stacked.shape) * (rows**0.5 + columns**0.5)
    sure = 1 - (edge / sizes.clamp_min(1e-300)).square()
    kept = sure > 0
    return (directions[kept] * sure[kept].sqrt()[:, None]).to(model.token_embedding) if bool(kept.any()) else None


def _keys(update: Update, model: TextModel) -> list[Tensor]:
    """The keys' gradient where no other matrix sees the first layer's inputs, with the direction that it lacks.

    Softmax ignores what is common to all keys of a sentence, so only differences of inputs show. The first special
    token is known, and with its input the differences to it give all the others.
    """
    carrier = model.adapter.parts[0]["key"].carrier(update.tensors)
    if carrier is None or carrier.map is not None or not model.prefix:
        return []
    first = first_inputs(model, torch.tensor(model.prefix[:1], device=model.device), 1)[0]
    return [carrier.matrix, F.normalize(first, dim=-1).to(carrier.matrix) * carrier.matrix.norm()]


def clear_rows(update: Update, model: TextModel) -> Tensor | None:
    """The tokens whose rows of the token embedding's gradient stand out from the noise; None if they do not.

    A language model's rows all take part in every prediction and show nothing this way.
    """
    table = update.tensors.get(model.adapter.parameter_of(model.adapter.token_embedding))
    if table is None or model.goal.predicts_tokens:
        return None
    return present_rows(table)


def _along(model: TextModel, tokens: Tensor, length: int, directions: Tensor) -> Tensor:
    inputs = F.normalize(first_inputs(model, tokens, length), dim=-1)
    return (inputs @ directions.T).square().sum(dim=-1)


def _position_shares(update: Update, model: TextModel, tokens: Tensor, length: int) -> Tensor:
    """How much of each token's row lies at each position; 0 everywhere if positions were not sent."""
    positions = model.adapter.positions
    table = None if positions is None else update.tensors.get(model.adapter.parameter_of(positions))
    if table is None:
        return torch.zeros(len(tokens), length)
    first = model.adapter.family.first_position
    rows = update.tensors[model.adapter.parameter_of(model.adapter.token_embedding)]
    everywhere = torch.ones(len(tokens), length, dtype=torch.bool, device=tokens.device)
    return unmix(rows[tokens], table[first : first + length], everywhere)
