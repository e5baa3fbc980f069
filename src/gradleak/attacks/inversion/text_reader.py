"""Reading tokens off updates with a trained inverter. Nothing here knows of auxiliary data or of a truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from gradleak.attacks.inversion.features import Features, Guess, Hashed, Structured
from gradleak.attacks.inversion.networks import NetworkSettings, TokenInverter, build_inverter
from gradleak.attacks.inversion.saved import load_inverter
from gradleak.core.errors import GradleakError
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# A token counts as known if it is likelier than not.
SURE = 0.5
# How often an update is read by default.
PASSES = 3


def features_for(settings: NetworkSettings, model: TextModel, shapes: Mapping[str, Sequence[int]]) -> Features:
    """The features that the settings name, of updates with tensors of these shapes."""
    if settings.features == "structured":
        return Structured(model, settings.length)
    return Hashed(shapes, settings.share, settings.hash_seed)


def inverter_for(settings: NetworkSettings, features: Features, model: TextModel, seed: int = 0) -> TokenInverter:
    """A fresh network for these features and this target."""
    return build_inverter(settings, features.size, settings.length, model.token_embedding, seed)


def read_tokens(
    network: TokenInverter, features: Features, tensors: Mapping[str, Tensor], usual: Tensor, passes: int
) -> tuple[Tensor, Tensor]:
    """The likeliest of the usual tokens at every position, (rows, positions), and their probabilities.

    Each pass after the first reads the updates again, with the tokens it is sure of as known.
    """
    guess = None
    for _ in range(passes):
        with torch.no_grad():
            logits = network.logits(network(features.of(tensors, guess)))
        best = logits.masked_fill(~usual, -torch.inf).softmax(dim=-1).max(dim=-1)
        guess = Guess(best.indices, best.values > SURE)
    return best.indices, best.values


@dataclass(frozen=True)
class ReadTokens:
    """Tokens of a sequence, and the probability that the network gives each."""

    tokens: list[int]
    probabilities: list[float]


class TextReader:
    """An inverter from its folder, ready for updates of its target."""

    def __init__(self, folder: str | Path, model: TextModel) -> None:
        self.manifest, weights = load_inverter(folder)
        if self.manifest.kind != "text":
            raise GradleakError(f"{folder} holds an inverter of {self.manifest.kind}s, not of text")
        if self.manifest.model_fingerprint != model.fingerprint:
            raise GradleakError(f"the inverter in {folder} was trained for {self.manifest.model}, not {model.name}")
        try:
            self.settings = NetworkSettings.model_validate(self.manifest.network)
        except ValidationError as error:
            raise GradleakError(f"{folder}: its manifest does not describe a network of this version") from error
        self.model = model
        self.features = features_for(self.settings, model, self.manifest.tensors)
        self.network = inverter_for(self.settings, self.features, model)
        try:
            self.network.load_state_dict(weights)
        except RuntimeError as error:
            raise GradleakError(f"{folder}: its weights do not fit its manifest") from error
        self.network.eval()

    def read(self, updates: Sequence[Update], passes: int) -> list[ReadTokens]:
        """The likeliest token at every position of each update's text."""
        for update in updates:
            self.manifest.refuse_others(update)
        tensors = {name: torch.stack([update.tensors[name] for update in updates]) for name in self.features.names}
        tokens, sure = read_tokens(self.network, self.features, tensors, self.model.text_tokens, passes)
        inner = slice(len(self.model.prefix), self.settings.length - len(self.model.suffix))
        return [ReadTokens(*pair) for pair in zip(tokens[:, inner].tolist(), sure[:, inner].tolist(), strict=True)]
