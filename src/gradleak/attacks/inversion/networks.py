"""Networks that turn features of an update into token sequences."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from gradleak.attacks.inversion.features import FeatureName
from gradleak.attacks.inversion.table_loss import table_cross_entropy

# Positions that hold no token of the text.
IGNORED = -100


class NetworkSettings(BaseModel):
    """What a text inverter is built from, beside the target."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    features: FeatureName = "structured"
    length: int = Field(16, ge=2, description="tokens of a sequence, including special tokens")
    share: float = Field(0.1, gt=0, le=1, description="bins of hashed features, as a share of the coordinates")
    hash_seed: int = 0
    width: int = Field(256, ge=8, description="width of the Transformer over positions (structured)")
    layers: int = Field(2, ge=1, description="its layers (structured)")
    hidden: tuple[int, int] = Field((600, 1000), description="of the perceptron, the second per position (hashed)")
    output: Literal["table", "vocabulary"] = Field(
        "table",
        description="table: dotted with the target's token embedding; vocabulary: a weight per token, as published",
    )


class PositionNetwork(nn.Module):
    """A Transformer over positions: at each, the features of it and of the position before."""

    scale: Tensor

    def __init__(self, size: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(size))
        self.enter = nn.Linear(2 * size, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.size = width

    def fit(self, features: Tensor) -> None:
        """Take the features' typical sizes from some of them; each view of a position has its own."""
        self.scale.copy_(features.square().mean(dim=(0, 1)).clamp_min(1e-30).rsqrt())

    def forward(self, features: Tensor) -> Tensor:
        """(rows, positions, width)."""
        seen = features * self.scale
        # The loss at a position is about the token after it, so what shows a token stands at the position before it.
        before = F.pad(seen, (0, 0, 1, 0))[:, :-1]
        return self.layers(self.enter(torch.cat([seen, before], dim=-1)) + self.positions)


class HashedNetwork(nn.Module):
    """The published perceptron: a hidden layer for all positions, then another for each."""

    scale: Tensor

    def __init__(self, size: int, length: int, hidden: tuple[int, int]) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))
        self.first = nn.Linear(size, hidden[0])
        self.second = nn.Linear(hidden[0], length * hidden[1])
        self.length, self.size = length, hidden[1]

    def fit(self, features: Tensor) -> None:
        self.scale.copy_(features.square().mean().clamp_min(1e-30).rsqrt())

    def forward(self, features: Tensor) -> Tensor:
        hidden = torch.relu(self.second(torch.relu(self.first(features * self.scale))))
        return hidden.view(len(features), self.length, self.size)


class TokenInverter(nn.Module):
    """Logits over the vocabulary at every position.

    With the target's own token embedding the network only has to point at an embedding, which is ten times cheaper
    than a weight for every token, and reaches tokens that the auxiliary data does not hold.
    """

    table: Tensor | None

    def __init__(self, body: PositionNetwork | HashedNetwork, table: Tensor, output: str) -> None:
        super().__init__()
        self.body = body
        self.leave = nn.Linear(body.size, table.shape[1] if output == "table" else len(table))
        self.sharpness = nn.Parameter(torch.tensor(5.0))
        self.bias = nn.Parameter(torch.zeros(len(table)))
        # Not saved: it belongs to the target, which the inverter is useless without.
        self.register_buffer("table", F.normalize(table, dim=1) if output == "table" else None, persistent=False)

    def start_from(self, counts: Tensor) -> None:
        """Begin with the frequencies of tokens."""
        with torch.no_grad():
            self.bias.copy_((counts + 1).log() - (counts + 1).log().max())

    def forward(self, features: Tensor) -> Tensor:
        """What `logits` and `loss` take, (rows, positions, width of the table or size of the vocabulary)."""
        return self.sharpness * self.leave(self.body(features))

    def logits(self, points: Tensor) -> Tensor:
        return (points if self.table is None else points @ self.table.T) + self.bias

    def loss(self, points: Tensor, wanted: Tensor) -> Tensor:
        """The mean cross-entropy of the tokens that are wanted; `IGNORED` positions do not count."""
        kept = wanted != IGNORED
        if self.table is None:
            return F.cross_entropy(self.logits(points)[kept], wanted[kept])
        weights = torch.full((int(kept.sum()),), 1 / int(kept.sum()), device=points.device)
        return table_cross_entropy(points[kept], self.table, wanted[kept], weights, self.bias)


def build_inverter(settings: NetworkSettings, size: int, length: int, table: Tensor, seed: int) -> TokenInverter:
    """A fresh network for features of this size; its weights follow from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body: PositionNetwork | HashedNetwork
        if settings.features == "structured":
            body = PositionNetwork(size, length, settings.width, settings.layers)
        else:
            body = HashedNetwork(size, length, settings.hidden)
        return TokenInverter(body, table, settings.output)
