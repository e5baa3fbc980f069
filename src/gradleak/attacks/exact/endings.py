"""The last token of every sentence of a language model: it is predicted, but nothing is predicted from it.

So no layer's input shows it. What shows it is the output gradient at the position before: the last layer's gradient
is a sum over positions of output gradient times input, the inputs are known once all sentences are, and solving for
the output gradients leaves a vector per position, which depends on the label in a known, linear way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.exact.growing import Prefix
from gradleak.models.adapter import Part
from gradleak.models.hooks import of_this_thread
from gradleak.models.text import TextModel

# Numbers of the gradients that are computed at once: few enough to stay in a processor's cache.
AT_ONCE = 1 << 19
# Positions that show how much one weighs in the batch's mean.
WEIGHED = 4
# The best label must fit this many times better than the second best.
CLEAR = 4.0
# Labels are first looked at in so many random directions, and this many that are nearest there in all.
DIRECTIONS, SHORTLIST = 16, 512
# Rows of a head that are looked at at a time.
ROWS = 16_384


@dataclass(frozen=True)
class Ending:
    """The last token of a sentence, and whether it stands out among all others."""

    token: int
    clear: bool


@dataclass(frozen=True)
class _Sentence:
    """What the last matrix sees of a sentence and gives, and what the model makes of that: the states at the end."""

    tokens: Tensor
    inputs: Tensor
    output: Tensor
    hidden: Tensor


def endings(model: TextModel, matrix: Tensor, prefixes: Sequence[Prefix]) -> list[Ending]:
    """The last tokens of sentences known but for these, in order, from the last feed-forward matrix's gradient.

    `prefixes` must be all sentences of the batch: a missing sentence would leak into the others' output gradients.
    """
    sentences = [_sentence(model, model.adapter.parts[-1]["ffn_out"], prefix) for prefix in prefixes]
    inputs = torch.cat([sentence.inputs for sentence in sentences]).double()
    solved = (matrix.double() @ torch.linalg.pinv(inputs)).T.split([len(s.inputs) for s in sentences])
    # All labels but the last are known, so they show how much a position weighs in the batch's mean. Where sentences
    # begin alike their positions are the same and only the sum of their output gradients shows.
    states = [prefix.states(model.adapter.positions is not None) for prefix in prefixes]
    alike = Counter(state for own in states for state in own)
    places = [(n, at) for n, own in enumerate(states) for at, state in enumerate(own[:-1]) if alike[state] == 1]
    # Positions at which nothing is predicted have next to no gradient, so those with most are looked at.
    most = sorted(places, key=lambda place: -float(solved[place[0]][place[1]].norm()))[:WEIGHED]
    chosen = {n: [at for m, at in most if m == n] for n, _ in most}
    seen = [solved[n][at] for n, at in chosen.items()]
    wanted = [_output_gradients(model, sentences[n], at) for n, at in chosen.items()]
    weight = _weight(torch.cat(seen), torch.cat(wanted).double()) if wanted else 1 / len(inputs)
    return [_ending(model, sentence, own[-1] / weight) for sentence, own in zip(sentences, solved, strict=True)]


def _output_gradients(model: TextModel, sentence: _Sentence, positions: list[int]) -> Tensor:
    """The gradients of the losses at some positions, each by what the last matrix gives there."""
    labels = sentence.tokens[[position + 1 for position in positions]]
    losses = F.cross_entropy(model.output_logits(sentence.hidden[positions]), labels, reduction="sum")
    (gradients,) = torch.autograd.grad(losses, sentence.output, retain_graph=True)
    return gradients.flatten(0, -2)[positions]


def _back_at_the_last(last: Tensor, output: Tensor, rows: Tensor) -> Tensor:
    """Each row's gradient at the last position: of what the model makes of it, by what the last matrix gives."""
    (gradient,) = torch.autograd.grad(last, output, rows, is_grads_batched=True, retain_graph=True)
    return gradient.flatten(1, -2)[:, -1]  # some models run all tokens of a batch as one list


def _weight(seen: Tensor, wanted: Tensor) -> float:
    """How much a position counts in the mean: what its output gradient is of the one it would have alone.

    Positions at which nothing is predicted, such as those of a question where only answers are, have next to none;
    the one with most is predicted, and those that count half as much as it or more are too.
    """
    along, alone = (seen * wanted).sum(dim=1), wanted.square().sum(dim=1)
    largest = int(seen.norm(dim=1).argmax())
    predicted = along * alone[largest] > 0.5 * along[largest] * alone
    return float(along[predicted].sum() / alone[predicted].sum())


def _ending(model: TextModel, sentence: _Sentence, seen: Tensor) -> Ending:
    """The label that makes the output gradient at the last position what was seen.

    That is what all labels expected make it, less the label's row of the head as it comes back through the last norm.
    A row counts by its slope: by how much the label's logit moves with what the head makes of the state, which is not
    one where logits are capped or multiplied.
    """
    head, last, output = model.module.get_output_embeddings().weight.detach(), sentence.hidden[-1], sentence.output
    eye = torch.eye(len(last), dtype=last.dtype, device=last.device)
    turn = torch.cat([_back_at_the_last(last, output, rows) for rows in eye.split(max(1, AT_ONCE // output.numel()))])
    with torch.no_grad():
        logits = model.output_logits(last)
        slopes = model.logit_slopes(logits)
        expected = (logits.softmax(dim=0) * slopes) @ head @ turn
    wanted = (expected.double() - seen).to(head)
    labels = torch.arange(len(head), device=head.device)
    if len(head) > SHORTLIST:  # turning a whole head would cost more than all the rest of the attack
        some = torch.randn(len(wanted), DIRECTIONS, generator=torch.Generator().manual_seed(0)).to(head)
        near = _distances(head, slopes, turn @ some, wanted @ some)
        labels = near.topk(SHORTLIST, largest=False).indices.sort().values
    best = _distances(head[labels], slopes[labels], turn, wanted).topk(2, largest=False)
    return Ending(int(labels[best.indices[0]]), bool(best.values[1] > CLEAR * best.values[0]))


def _distances(head: Tensor, slopes: Tensor, turn: Tensor, wanted: Tensor) -> Tensor:
    """How far the rows of a head, turned, are from a vector."""
    parts = zip(head.split(ROWS), slopes.split(ROWS), strict=True)
    return torch.cat([((rows @ turn) * slope[:, None] - wanted).norm(dim=1) for rows, slope in parts])


def _sentence(model: TextModel, part: Part, prefix: Prefix) -> _Sentence:
    caught: dict[str, Tensor] = {}

    def hook(module: Any, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        caught["inputs"] = arguments[0].detach().flatten(0, -2)
        torch.set_grad_enabled(True)  # what comes before needs no graph, which would be the largest of all tensors
        caught["output"] = output.detach().requires_grad_()
        return caught["output"].clone()  # some models add to it where it lies

    ids = torch.tensor([prefix.tokens], device=model.device)
    places = torch.arange(prefix.start, prefix.start + ids.shape[1], device=ids.device)[None]
    handle = part.module.register_forward_hook(of_this_thread(hook))
    try:
        with torch.no_grad():
            hidden = model.module.base_model(input_ids=ids, position_ids=places, use_cache=False)[0][0]
    finally:
        handle.remove()
    return _Sentence(ids[0], caught["inputs"], caught["output"], hidden)
