"""Writing update folders while somebody else's training runs."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.parameters import validated
from gradleak.core.tensor_files import check_finite
from gradleak.models.adapter_names import loaded_name
from gradleak.models.base import fingerprint_of
from gradleak.models.load import save_model
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.integrations.form import Form, difference
from gradleak.updates.manifest import Manifest
from gradleak.updates.plausible import check_made
from gradleak.updates.update import Update

MODEL = "model"
# What an attacker may know of a recorded update; labels and lengths do not pass through here.
RECORDABLE = ("batch_size",)


@dataclass(frozen=True)
class Recorder:
    """How updates of one training are made, and where they are written.

    `rule` decides what the tensors of a reply are: gradients under fedsgd, weights after training under fedavg.
    """

    out: Path
    form: Form
    rule: ClientRule
    defenses: tuple[str, ...] = ()
    known: tuple[str, ...] = RECORDABLE
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        out: str | Path,
        model: Any,
        client: ClientRule | str,
        defenses: Sequence[str] = (),
        known: Collection[str] = RECORDABLE,
        notes: Sequence[str] = (),
    ) -> Recorder:
        unknown = sorted(set(known) - set(RECORDABLE))
        if unknown:
            raise GradleakError(f"known: a recording has no {unknown[0]!r}; it has {', '.join(RECORDABLE)}")
        rule = ClientRule.parse(client) if isinstance(client, str) else client
        return cls(Path(out), Form.of(model), rule, tuple(defenses), tuple(known), tuple(notes))

    def write(
        self,
        place: Path,
        before: Mapping[str, Tensor],
        reply: Mapping[str, Tensor],
        *,
        sentences: int | None,
        clients: int = 1,
        notes: Sequence[str] = (),
    ) -> Path:
        """One update folder. `before` are the global weights, `reply` what was sent: gradients or weights."""
        tensors = self.form.named(reply)
        if self.rule.local:
            tensors = difference(before, tensors)
        check_finite(tensors)
        # An update of adapters alone does not show the weights below them.
        whole = before.keys() == self.form.parameters.keys()
        claims = {
            "task": self.form.task,
            "family": self.form.family,
            "model_fingerprint": fingerprint_of({loaded_name(name): w for name, w in before.items()})
            if whole
            else None,
            "client": self.rule,
            "defenses": self.defenses,
            "known": {"batch_size": sentences if "batch_size" in self.known else None},
            "clients": clients,
            "notes": (*self.notes, *notes),
        }
        manifest = validated(Manifest, claims, "the update's manifest")
        check_made(tensors, before, manifest)
        return Update({loaded_name(name): tensor.float() for name, tensor in tensors.items()}, manifest).save(place)


def save_with(module: Any, weights: Mapping[str, Tensor], tokenizer: Any, place: Path) -> Path:
    """Write the model as it is with these weights; the model itself stays as it was."""
    if hasattr(module, "peft_config"):
        return save_model(module, tokenizer, place, adapters=weights)  # the base may be too large for a copy
    copied = copy.deepcopy(module).cpu()
    parameters = dict(copied.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(weight)
    return save_model(copied, tokenizer, place)
