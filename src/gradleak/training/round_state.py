"""The state of a simulated training, written now and then, so that it goes on where it was stopped."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gradleak.core.files import replacing

# How often it is written at most; and the share of the time that writing may take.
SAVE_SECONDS = 10.0
SHARE = 0.05

_UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, KeyError, AttributeError, pickle.UnpicklingError)


class RoundState:
    """Weights, the server's optimiser and the rounds that are done, in one file; without a path nothing is kept."""

    def __init__(self, path: Path | None, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
        self.path, self.weights, self.optimizer = path, weights, optimizer
        self._saved, self._pause = time.monotonic(), SAVE_SECONDS

    def resume(self) -> int:
        """The number of rounds that are done; weights and optimiser are set to what they were after them."""
        if self.path is None or not self.path.is_file():
            return 0
        try:
            state = torch.load(self.path, weights_only=True)
            rounds, kept, moments = int(state["rounds"]), state["weights"], state["optimizer"]
            if {name: tensor.shape for name, tensor in kept.items()} != self._shapes():
                return 0
            self.optimizer.load_state_dict(moments)
        except _UNREADABLE:  # it only saves time
            return 0
        with torch.no_grad():
            for name, parameter in self.weights.items():
                parameter.copy_(kept[name])
        return rounds

    def _shapes(self) -> dict[str, torch.Size]:
        return {name: parameter.shape for name, parameter in self.weights.items()}

    def save_sometimes(self, rounds: int) -> None:
        """Write it if it was not written lately."""
        if time.monotonic() - self._saved > self._pause:
            self.save(rounds)

    def save(self, rounds: int) -> None:
        if self.path is None:
            return
        started = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        weights = {name: parameter.detach() for name, parameter in self.weights.items()}
        with replacing(self.path) as scratch:
            torch.save({"rounds": rounds, "weights": weights, "optimizer": self.optimizer.state_dict()}, scratch)
        self._saved = time.monotonic()
        self._pause = max(SAVE_SECONDS, (self._saved - started) / SHARE)

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
