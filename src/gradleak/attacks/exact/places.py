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

    Every state is a dimension wherever tokens are mixed. A state that rounding covers in a place lowers the rank
    there, and would be taken for wrong: the largest rank that two places show is right, and these are given.
    """
    layers = [layer for layer in range(len(model.adapter.parts)) if shows_every_token(model, layer)]
    looked, found = 0, []
    for _, parts in mixed_places(model, layers):
        held = [part for part in parts if part.carrier(tensors) is not None]
        if held:
            looked += 1
            span = joint_span(tensors, parts, outside=1)
            found += [] if span is None else [Place(held[0], span)]
        if looked == MOST_PLACES or (looked == FIRST_PLACES and not found):
            break
    ranks = Counter(place.span.rank for place in found)
    rank = max((each for each, places in ranks.items() if places > 1), default=0)
    return [place for place in found if place.span.rank == rank]


def telling(model: TextModel, places: Sequence[Place], tokens: Tensor, start: int) -> list[Place]:
    """The first places that let no wrong prefix of these tokens through, at positions from `start`; none if all do.

    Every state of the batch is tried with every token after it.
    """
    if not places or not len(tokens):
        return []
    states = made_up_states(model, [place.part for place in places], tokens, start)
    false_ones = float(places[0].span.rank * len(tokens))
    for count, (place, seen) in enumerate(zip(places, states, strict=True), start=1):
        false_ones *= chance(place.span, seen)
        if false_ones <= NO_FALSE_ONE:
            return list(places[: max(2, count)])
    return []


def made_up_states(
    model: TextModel,
    parts: Sequence[Part],
    tokens: Tensor,
    start: int = 0,
    count: int = MADE_UP,
    length: int = MADE_UP_TOKENS,
) -> list[Tensor]:
    """What the parts, in the order they run, see last of prefixes of these tokens in any order: (prefixes, width).

    Next to none of them is the beginning of a sentence.
    """
    draw, among = random.Random(0), tokens.tolist()
    ids = torch.tensor([draw.choices(among, k=length) for _ in range(count)], device=model.device)
    where = torch.arange(start, start + length, device=ids.device)[None]
    with torch.no_grad():
        states = Probe(model, parts)(input_ids=ids, mask=torch.ones_like(ids), position_ids=where)
    return [seen[:, -1] for seen in states]
