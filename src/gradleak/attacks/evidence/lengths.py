"""How long the sentences of a batch are, read off the gradient."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from torch import Tensor

from gradleak.attacks.evidence.compositions import cheapest_compositions
from gradleak.attacks.spans.certify import shows_every_token
from gradleak.attacks.spans.spans import numerical_rank
from gradleak.defenses import known_defenses
from gradleak.models.adapter import Part
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Below this share of the largest row, a gradient row is rounding.
ROW_NOISE = 1e-6
# Under noise a row is used if it is so many standard deviations above the median.
CLEAR_ROW = 6.0
# The longest sentence looked for when nothing in the update shows it.
LONGEST = 32
# Where matrices of so many layers are full, of noise or of tokens, those of the others are.
MOST_FULL = 3
# Roles that see a layer's input.
ATTENTION = ("query", "key", "value")


def longest_sentence(update: Update, model: TextModel) -> int | None:
    """The longest sentence's token count: position rows beyond it have no gradient."""
    table = model.adapter.positions
    gradient = update.tensors.get(model.adapter.parameter_of(table)) if table is not None else None
    if gradient is None:
        return None
    sizes = gradient.norm(dim=1)
    used = (sizes > ROW_NOISE * sizes.max()).nonzero()
    if len(used) == len(gradient):  # all moved: that is noise, and most rows, so the median too, hold nothing else
        used = (sizes > sizes.median() * (1 + CLEAR_ROW / (2 * gradient.shape[1]) ** 0.5)).nonzero()
    if not len(used):
        return None
    longest = int(used.max()) + 1 - model.adapter.family.first_position + _unseen(model)
    # Special tokens alone are no sentence: noise hid the rest.
    return longest if longest >= shortest_sentence(model) else None


def total_tokens(update: Update, model: TextModel, sentences: int) -> int | None:
    """The token count of the whole batch: each token adds one to the rank of a layer's gradient.

    Where values and feed-forward matrices were not sent, others show it.
    """
    for roles in (("value", "ffn_in"), ("ffn_gate", "attention_out", "ffn_out"), ("query",), ("key",)):
        totals = [
            rank + _hidden(model, layer, role, sentences)
            for role in roles
            for layer, rank in _ranks(update, model, role)
        ]
        if totals:
            return max(totals) + sentences * _unseen(model)
    return None


def _ranks(update: Update, model: TextModel, role: str) -> Iterator[tuple[int, int]]:
    """The layers whose matrices of a role show how many tokens there were, and their ranks."""
    full = 0
    for layer, parts in enumerate(model.adapter.parts):
        matrix = _counting(update, model, layer, parts[role]) if role in parts and full < MOST_FULL else None
        if matrix is not None:
            rank = numerical_rank(matrix)
            if 0 < rank < min(matrix.shape):
                yield layer, rank
            full += rank == min(matrix.shape)


def _counting(update: Update, model: TextModel, layer: int, part: Part) -> Tensor | None:
    """A matrix that was sent, if its rank counts all tokens."""
    # Where positions are not added, the first layer's inputs are the tokens alone, and repeated tokens show once.
    unmixed = (*ATTENTION, "ffn_in", "ffn_gate", "ffn_out") if model.adapter.parallel else ATTENTION
    repeats = layer == 0 and part.role in unmixed and model.adapter.positions is None
    carrier = part.carrier(update.tensors)
    # A layer that runs several times has a dimension for every token and run.
    if carrier is None or repeats or model.adapter.shared or not shows_every_token(model, layer):
        return None
    return carrier.matrix


def _hidden(model: TextModel, layer: int, role: str, sentences: int) -> int:
    """Tokens that add nothing to a matrix's rank.

    An encoder's keys show differences within a sentence only, since softmax ignores what is common to all. A
    decoder's queries miss the first token, which has nothing to choose from. First special tokens look the same in
    all sentences until they have seen what follows.
    """
    decoder = model.adapter.family.kind == "decoder"
    alike = len(model.prefix) if decoder or (layer == 0 and role in ATTENTION) else 0
    if role == ("query" if decoder else "key"):
        return sentences + max(0, alike - 1) * (sentences - 1)
    return alike * (sentences - 1)


def most_tokens(update: Update, model: TextModel) -> int | None:
    """The most tokens the batch can have; None where nothing bounds them.

    By the known lengths, or by the batch size and the positions whose rows moved. Rows that did not move tell nothing
    where values were taken away.
    """
    known, table = update.known, model.adapter.positions
    if known.lengths is not None:
        return sum(known.lengths)
    if known.size is None:
        return None
    gradient = update.tensors.get(model.adapter.parameter_of(table)) if table is not None else None
    lossy = any(defense is None or defense.lossy for defense in known_defenses(update.manifest.defenses))
    if gradient is None or lossy:
        return known.size * model.max_length
    moved = (gradient != 0).any(dim=1).nonzero()
    last = int(moved.max()) + 1 - model.adapter.family.first_position if len(moved) else 0
    return known.size * (last + _unseen(model))


def length_guesses(model: TextModel, size: int, longest: int | None, total: int | None) -> Iterator[list[int]]:
    """Token counts a batch may have, longest sentence first; a single guess where the gradient shows them all."""
    shortest = shortest_sentence(model)
    if size == 1:
        length = longest or (total if total is not None and total >= shortest else None)
        yield from ([length],) if length else ([n] for n in range(shortest, min(LONGEST, model.max_length) + 1))
        return
    top = longest or min(LONGEST, model.max_length)
    rest = [] if longest is None else [longest]
    splits = iter(()) if total is None else _splits(total - sum(rest), size - len(rest), shortest, top)
    likeliest = next(splits, None)
    if likeliest is not None:
        yield from ([*rest, *split] for split in itertools.chain([likeliest], splits))
    else:  # all as long as the longest, then all others shorter
        yield from ([top] + [n] * (size - 1) for n in range(top, shortest - 1, -1))


def _splits(total: int, parts: int, low: int, high: int) -> Iterator[tuple[int, ...]]:
    """The ways to write a total as a falling list of numbers between two limits.

    Similar numbers come first: sentences of similar length are likelier than a short beside a long sentence.

    >>> list(_splits(10, 2, 3, 6))
    [(5, 5), (6, 4)]
    """
    if not low * parts <= total <= high * parts:
        return iter(())
    each, more = divmod(total, parts)
    even = (each + 1,) * more + (each,) * (parts - more)
    return cheapest_compositions(even, lambda split: sum(n * n for n in split), least=low, most=high, unordered=True)


def shortest_sentence(model: TextModel) -> int:
    """The fewest tokens a sentence has: a single token between the special tokens."""
    return len(model.prefix) + len(model.suffix) + 1


def _unseen(model: TextModel) -> int:
    """A language model predicts nothing from a sentence's last token, so it leaves no trace."""
    return 0 if model.reads_last else 1
