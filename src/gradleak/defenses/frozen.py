"""Frozen parameters: they are not trained, so nothing is sent for them."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import Field

from gradleak.core.errors import GradleakError
from gradleak.defenses.base import Defense
from gradleak.models.base import Target
from gradleak.models.text import text_target


class Frozen(Defense):
    summary = "some parameters are not trained: their tensors do not leave the client"
    reveals = "which parameters are frozen: their tensors are missing"
    random, coordinatewise, lossy = False, True, False

    parts: Literal["embeddings", "words", "none"] = Field(
        "embeddings", description="embeddings: all embedding tables; words: the token embedding only; none: no table"
    )
    names: str | None = Field(None, description="further parameters, as a pattern such as *.layer.0.*")

    def trained(self, names: Sequence[str], model: Target) -> list[str]:
        frozen: set[str] = set()
        if self.parts != "none":
            adapter = text_target(model, f"frozen:parts={self.parts}").adapter
            tables = [adapter.token_embedding, adapter.positions, adapter.token_types]
            chosen = tables if self.parts == "embeddings" else tables[:1]
            frozen = {adapter.parameter_of(table) for table in chosen if table is not None}
        if self.names is not None:
            matching = [name for name in model.parameters() if fnmatchcase(name, self.names)]
            if not matching:
                raise GradleakError(f"frozen: no parameter of {model.name} matches {self.names!r}")
            frozen |= set(matching)
        kept = [name for name in names if name not in frozen]
        if not kept:
            raise GradleakError("frozen: nothing is left to train")
        return kept
