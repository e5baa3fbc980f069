"""From continuous embeddings to tokens and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.models.text import TextModel


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that a text can contain, with the directions and the mean norm of their embeddings."""

    ids: Tensor
    directions: Tensor
    mean_norm: float

    @classmethod
    def of(cls, model: TextModel) -> Vocabulary:
        table = model.embed(torch.arange(model.vocabulary_size, device=model.device))
        ids = model.text_tokens.nonzero()[:, 0]
        return cls(ids, F.normalize(table[ids], dim=1), float(table.norm(dim=1).mean()))

    def only(self, ids: Tensor) -> Vocabulary:
        """The vocabulary of these tokens only."""
        kept = torch.isin(self.ids, ids)
        return Vocabulary(self.ids[kept], self.directions[kept], self.mean_norm)

    def near(self, embeds: Tensor, count: int) -> Tensor:
        """For every embedding the tokens closest in direction, best first, (..., count)."""
        flat = F.normalize(embeds.reshape(-1, embeds.shape[-1]), dim=1)
        most = min(count, len(self.ids))
        best = [(part @ self.directions.T).topk(most, dim=1).indices for part in flat.split(1024)]
        return self.ids[torch.cat(best)].view(*embeds.shape[:-1], most)

    def nearest(self, embeds: Tensor) -> tuple[Tensor, Tensor]:
        """For every embedding the token closest in direction, and the cosine between the two."""
        flat = F.normalize(embeds.reshape(-1, embeds.shape[-1]), dim=1)
        # In slices: a whole batch against the whole vocabulary at once would be the largest tensor around.
        best = [(part @ self.directions.T).max(dim=1) for part in flat.split(1024)]
        cosines = torch.cat([b.values for b in best]).view(embeds.shape[:-1])
        tokens = self.ids[torch.cat([b.indices for b in best])].view(embeds.shape[:-1])
        return tokens, cosines
