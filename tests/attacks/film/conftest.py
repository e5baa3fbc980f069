"""A language model that writes."""

from __future__ import annotations

import pytest
from tiny import tiny_model

from gradleak import TextModel


@pytest.fixture(params=("gpt2", "llama"))
def writer(request: pytest.FixtureRequest) -> TextModel:
    """A causal language model of each family, with enough layers that some stay below those that move."""
    return tiny_model(request.param, "causal-lm", layers=3, width=32)
