"""How the sentences of a crowded update begin.

The state after a first token hardly depends on the token, and is unlike all later ones. So the row of a token in the
gradient of the output layer holds that one state as often as the token came second. Which token came before it, early
layers tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.crowded.leverage import Leverages
from gradleak.attacks.soft.continuations import branches
from gradleak.models.text import TextModel

# Spread that states are taken to have in every direction, relative to the mean: public text never shows all of it.
RIDGE = 1e-2
# How alike first states must be to count by them.
ALIKE = 0.9
# The least count of a token that is tried as a second one, and how many are at most, for every sentence.
COUNTED, MOST = 0.2, 2
# The first spots, by which first tokens are chosen.
EARLY = 8


@torch.no_grad()
def second_tokens(
    model: TextModel,
    tensors: Mapping[str, Tensor],
    first: Sequence[int],
    bag: Tensor,
    rows: Sequence[Sequence[int]],
    sentences: int,
) -> dict[int, float]:
    """About how often each token came second; every token of the bag once where the update does not show it.

    `first` are tokens that may have come first, `rows` public text, which shows what later states look like.
    """
    adapter, base = model.adapter, model.module.base_model
    layer = adapter.token_embedding if adapter.tied else adapter.output_layer
    head = None if layer is None else tensors.get(adapter.parameter_of(layer))
    unknown = dict.fromkeys(bag.tolist(), 1.0)
    if head is None or head.dim() != 2:
        return unknown
    begun = base(input_ids=torch.tensor(first, device=model.device)[:, None]).last_hidden_state[:, 0]
    state = begun.mean(dim=0)
    if head.shape[1] != len(state) or float(torch.cosine_similarity(begun, state[None]).median()) < ALIKE:
        return unknown
    ids = [torch.tensor([list(row)], device=model.device) for row in rows if len(row) > 2]
    later = torch.cat([base(input_ids=own).last_hidden_state[0, 1:] for own in ids]).double()
    mean = later.mean(dim=0)
    spread = (later - mean).T @ (later - mean) / len(later)
    spread += RIDGE * spread.diagonal().mean() * torch.eye(len(spread), dtype=spread.dtype, device=spread.device)
    away, usual = torch.linalg.solve(spread, torch.stack([state.double() - mean, mean], dim=1)).unbind(dim=1)
    filtered = away - (away @ mean) / (usual @ mean) * usual  # later states have nothing along it on average
    found = -(head[bag].double() @ filtered)
    # A token that was expected after a first one has less than it came.
    expected = model.output_logits(state[None]).softmax(dim=1)[0, bag].double()
    scale = sentences * float(1 - expected.sum()) / float(found.sum())
    if not scale > 0:
        return unknown
    counts = found * scale + sentences * expected
    likely = counts.topk(min(len(bag), MOST * sentences)).indices
    return {int(bag[n]): float(counts[n]) for n in likely.tolist() if float(counts[n]) > COUNTED} or unknown


def early_leverages(model: TextModel, levers: Leverages, first: int, second: Sequence[int]) -> Tensor:
    """The leverages at the first spots of second tokens after a first one, (tokens, spots)."""
    early = Leverages(levers.spots[:EARLY], levers.maps[:EARLY])
    return early.of(branches(model, early.spots, [first], [list(second)]))
