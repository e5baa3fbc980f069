"""How a client trains: one gradient, or local steps of plain SGD. Loads without torch."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradleak.core.parameters import split_parameters, validated


class ClientRule(BaseModel):
    """How the client turned its data into the update; the server sets these, so the attacker knows them.

    fedsgd sends the gradient of the mean loss over the batch. fedavg takes steps of plain SGD over the batch in
    mini-batches, in order, and sends the weights: the update is the weights before minus the weights after.

    >>> str(ClientRule.parse("fedavg:epochs=2,lr=1e-4"))
    'fedavg:epochs=2,batch=1,lr=0.0001'
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["fedsgd", "fedavg"] = "fedsgd"
    mode: Literal["eval", "train"] = Field("eval", description="train: dropout is on")
    epochs: int = Field(1, ge=1, le=10_000, description="passes over the batch (fedavg)")
    batch: int = Field(1, ge=1, le=100_000, description="sentences per local step (fedavg)")
    lr: float = Field(5e-5, gt=0, le=10, description="step size of local SGD (fedavg)")

    @model_validator(mode="after")
    def _local_only(self) -> ClientRule:
        local = self.model_fields_set & {"epochs", "batch", "lr"}
        if self.name == "fedsgd" and any(getattr(self, n) != ClientRule.model_fields[n].default for n in local):
            raise ValueError("epochs, batch and lr belong to fedavg")
        return self

    @classmethod
    def parse(cls, spec: str) -> ClientRule:
        """The rule of a text such as `fedavg:epochs=1,batch=1,lr=5e-5` or `fedsgd:mode=train`."""
        name, values = split_parameters(spec, modules=False)
        return validated(cls, {"name": name, **values}, f"client {name!r}")

    def steps(self, sentences: int) -> int:
        """How many local steps the client takes over this many sentences."""
        return self.epochs * math.ceil(sentences / self.batch) if self.name == "fedavg" else 1

    def __str__(self) -> str:
        values = [f"epochs={self.epochs}", f"batch={self.batch}", f"lr={self.lr:g}"] if self.name == "fedavg" else []
        values += ["mode=train"] if self.mode == "train" else []
        return f"{self.name}:{','.join(values)}" if values else self.name
