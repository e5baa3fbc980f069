"""The places in a decoder by which its sentences are judged: as many as it takes to tell right states from wrong.

Usually two suffice, what follows the first attention and the entry of the next layer. A batch that nearly fills its
layers leaves few dimensions outside their spans, and wrong states then fit one by chance. They do not fit many: each
further layer is a test of its own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.spans.certify import Place, joint_span, mixed_places, shows_every_token
from gradleak.attacks.spans.chance import chance
from gradleak.attacks.spans.probe import Probe
from gradleak.attacks.spans.spans import Span
from gradleak.models.adapter import Part
from gradleak.models.text import TextModel

# Wrong prefixes that are expected to fit every place, over all that are tried: up to so many are none.
NO_FALSE_ONE = 1e-3
# Places that are looked at where spans are nearly full; if none of the first few shows a rank, none will.
MOST_PLACES, FIRST_PLACES = 12, 4
# Prefixes made up to measure how near wrong states come: how many, and of how many tokens.
MADE_UP, MADE_UP_TOKENS = 1024, 4


def nearly_full_places(model: TextModel, tensors: Mapping[str, Tensor]) -> list[Place]:
    """The places of an update whose spans leave few dimensions over, in the order they run; none if no rank shows.

    Every state is a dimension wherever tokens are mixed, so all have the rank that most of them show.
    """
    layers = [layer for layer in range(len(model.adapter.parts)) if shows_every_token(model, layer)]
    found: list[tuple[Part, list[Part], Span | None]] = []
    for _, parts in mixed_places(model, layers):
        held = [part for part in parts if part.carrier(tensors) is not None]
        if held:
            found.append((held[0], parts, joint_span(tensors, parts, outside=1)))
        if len(found) == MOST_PLACES or (len(found) == FIRST_PLACES and not any(span for *_, span in found)):
            break
    ranks = Counter(span.rank for *_, span in found if span is not None)
    if not ranks:
        return []
    rank = max(ranks, key=lambda each: (ranks[each], each))
    spans = [
        (part, span if span is not None and span.rank == rank else joint_span(tensors, parts, rank=rank, outside=1))
        for part, parts, span in found
    ]
    return [Place(part, span) for part, span in spans if span is not None]


def telling(model: TextModel, places: Sequence[Place], tokens: Tensor, start: int) -> list[Place]:
    """The first places that let no wrong prefix of these tokens through, at positions from `start`; none if all do.

    Every state of the batch is tried with every token after it.
    """
    draw = random.Random(0)
    among = tokens.tolist()
    made_up = [[draw.choice(among) for _ in range(MADE_UP_TOKENS)] for _ in range(MADE_UP)] if among else []
    if not made_up or not places:
        return []
    ids = torch.tensor(made_up, device=model.device)
    where = torch.arange(start, start + MADE_UP_TOKENS, device=ids.device)[None]
    with torch.no_grad():
        states = Probe(model, [place.part for place in places])(
            input_ids=ids, mask=torch.ones_like(ids), position_ids=where
        )
    false_ones = float(places[0].span.rank * len(among))
    for count, (place, seen) in enumerate(zip(places, states, strict=True), start=1):
        false_ones *= chance(place.span, seen[:, -1])
        if false_ones <= NO_FALSE_ONE:
            return list(places[: max(2, count)])
    return []
