"""Why an exact recovery is not possible, with its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from gradleak.attacks.evidence.lengths import most_tokens
from gradleak.attacks.reasons import Reason
from gradleak.attacks.spans.certify import attention_parts
from gradleak.attacks.spans.spans import least_outside, numerical_rank
from gradleak.models.adapter import Carrier, Part
from gradleak.models.text import TextModel
from gradleak.updates.optimisers import gradient_weights, spacing, trained
from gradleak.updates.update import Update


def not_in_update(update: Update, groups: Sequence[Sequence[Part]]) -> Reason | None:
    """A reason if the update holds no matrix of some group."""
    for parts in groups:
        if not any(part.carrier(update.tensors) is not None for part in parts):
            return Reason(kind="matrix-missing", about=parts[0].weight_name)
    return None


def too_little(update: Update, model: TextModel, tokens: int) -> Reason | None:
    """A reason if what can be matched holds fewer independent numbers than the embeddings of so many tokens.

    A matrix of rank r holds r times (rows + columns) numbers at most. The token embedding has no gradient to match.
    """
    unknown = tokens * model.width
    embedding = model.adapter.parameter_of(model.adapter.token_embedding)
    seen = 0
    for name, tensor in update.tensors.items():
        if name != embedding:
            seen += (
                tensor.numel()
                if tensor.dim() < 2
                else numerical_rank(tensor.flatten(1)) * sum(tensor.flatten(1).shape)
            )
        if seen >= unknown:
            return None
    return Reason(kind="too-little-seen", numbers={"told": seen, "unknown": unknown, "tokens": tokens})


def rank_hidden(update: Update, model: TextModel, parts: Sequence[Part]) -> Reason:
    """The reason where a spectrum shows no rank: too many tokens, if there can be so many, or something over it."""
    carrier = next(c for c in (part.carrier(update.tensors) for part in parts) if c is not None)
    matrix = carrier.matrix.double()
    sizes = torch.linalg.svdvals(matrix)
    if not float(sizes[0]):
        return Reason(kind="zero", about=carrier.name)
    limit, adapter = min(matrix.shape), model.adapter
    if parts[0] in attention_parts(model, 0) and adapter.embedding_projection is not None:
        limit = min(limit, model.width)  # what the layer sees is made of narrower embeddings
    if adapter.shared:  # every run of the layer but the last has a dimension for each token
        limit = min(limit, min(matrix.shape) // (adapter.depth - 1))
    numbers = {"largest": float(sizes[0]), "smallest": float(sizes[-1]), "limit": limit}
    most = most_tokens(update, model)
    if most is not None and most <= limit - least_outside(matrix.shape[1]):
        numbers["most"] = most
    if update.local_steps > 1:
        numbers["standing"] = int((sizes > rounding_edge(update, model, carrier)).sum())
    return Reason(kind="no-gap", about=carrier.name, numbers=numbers)


def rounding_edge(gradient: Update, model: TextModel, carrier: Carrier) -> float:
    """The largest singular value that rounding alone gives the gradient of weights that local steps moved."""
    rule = gradient.manifest.client
    rates = rule.rates(gradient.sentences_per_client)
    gaps = spacing(trained(model.parameters()[carrier.name], rule))
    error = float((gaps.square().mean() * len(rates) / 12).sqrt()) / max(sum(gradient_weights(rule, rates)), 1e-300)
    return error * sum(side**0.5 for side in carrier.matrix.shape)


def coherence(gradient: Update) -> float:
    """How many times larger that may be, as mini-batches come round again.

    A weight lies on the grid of its precision, so a step of the same size is rounded the same way every time: errors
    of steps that hardly change add up over epochs, and those of different mini-batches only are independent.
    """
    steps = [str(parts) for parts in gradient.manifest.client.mini_batches(gradient.sentences_per_client)]
    return float((sum(times**2 for times in Counter(steps).values()) / len(steps)) ** 0.5)
