"""What an attacker trains on: text like the victims', or only how often each token occurs in it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.core.seeds import derive_seed
from gradleak.data.windows import windows
from gradleak.models.text import TextModel

# Sequences that are never learned from: enough to tell losses apart, few enough to check often.
HELD_OUT = 256


@dataclass(frozen=True)
class Auxiliary:
    """Sequences to learn from and others to check with, and how often each token occurs in the former.

    With `pseudo` only these frequencies are used: sequences are drawn token by token, fresh each time, and so are
    those to check with.
    """

    sequences: Tensor
    others: Tensor
    counts: Tensor
    frame: tuple[tuple[int, ...], tuple[int, ...]]
    pseudo: bool
    seed: int

    @property
    def identity(self) -> str:
        """Changes with the sequences and with how they are used."""
        digest = hashlib.sha256(self.sequences.numpy().tobytes() + self.others.numpy().tobytes())
        return f"{digest.hexdigest()[:16]} {self.pseudo} {self.seed}"

    def numbers(self, step: int, count: int) -> Tensor:
        """Which sequences a step takes: each once before any comes again."""
        epoch, first = divmod(step * count, len(self.sequences))
        order = torch.cat([self._order(epoch + i) for i in range(2 + count // len(self.sequences))])
        return order[first : first + count]

    def draw(self, step: int, count: int) -> Tensor:
        """Token sequences of a step, which follow from its number alone."""
        if not self.pseudo:
            return self.sequences[self.numbers(step, count)]
        return self._invented(count, "step", step)

    def held_out(self) -> Tensor:
        """Sequences to check with."""
        return self._invented(HELD_OUT, "held out") if self.pseudo else self.others

    def _invented(self, count: int, *what: object) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, *what))
        before, after = self.frame
        inner = self.sequences.shape[1] - len(before) - len(after)
        drawn = torch.multinomial(self.counts, count * inner, replacement=True, generator=generator)
        ends = [torch.tensor(part, dtype=torch.long).expand(count, -1) for part in (before, after)]
        return torch.cat([ends[0], drawn.view(count, inner), ends[1]], dim=1)

    def _order(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", epoch))
        return torch.randperm(len(self.sequences), generator=generator)


def gather_auxiliary(
    texts: Sequence[str],
    model: TextModel,
    *,
    length: int,
    size: int | None = None,
    pseudo: bool = False,
    other: Sequence[str] = (),
    share: float = 1.0,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Auxiliary:
    """Cut texts into sequences and keep `size` of them; with `other` only that share of them comes from `texts`."""
    if other and size is None:
        raise GradleakError("a mixture of two corpora needs a size")
    wanted = None if size is None else size + HELD_OUT
    own = _pieces(
        texts, model, length, wanted if not other or wanted is None else round(share * wanted), seed, progress
    )
    rest = _pieces(other, model, length, max(0, (wanted or 0) - len(own)), seed, progress) if other else []
    pieces = own + rest
    random.Random(seed).shuffle(pieces)
    if len(pieces) < 2:
        raise GradleakError(f"the auxiliary texts hold {len(pieces)} sequences of {length} tokens; that is too few")
    kept = min(HELD_OUT, len(pieces) // 2)
    others, sequences = torch.tensor(pieces[:kept]), torch.tensor(pieces[kept:])
    inner = sequences[:, len(model.prefix) : length - len(model.suffix)]
    counts = torch.bincount(inner.flatten(), minlength=model.vocabulary_size).float()
    return Auxiliary(sequences, others, counts, (tuple(model.prefix), tuple(model.suffix)), pseudo, seed)


def _pieces(
    texts: Sequence[str], model: TextModel, length: int, wanted: int | None, seed: int, progress: Progress
) -> list[list[int]]:
    """Sequences of the texts in an order drawn from the seed, until there are enough."""
    sequences: list[list[int]] = []
    progress.begin("cutting the auxiliary texts", wanted or len(texts), "sequences" if wanted else "texts")
    for number, index in enumerate(random.Random(seed).sample(range(len(texts)), len(texts))):
        if wanted is not None and len(sequences) >= wanted:
            break
        sequences += [tokens for _, tokens in windows(texts[index], model, length)]
        if not number % 100:
            progress.advance(min(len(sequences), wanted) if wanted else number)
    progress.end()
    return sequences if wanted is None else sequences[:wanted]
