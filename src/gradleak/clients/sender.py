"""What clients of text and of images share: training by a rule, the chain of defences, and the manifest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from gradleak.clients.training import local_training, plain_gradient
from gradleak.core.errors import GradleakError
from gradleak.core.seeds import derive_seed
from gradleak.defenses import parse_defenses
from gradleak.defenses.base import Defense
from gradleak.defenses.chains import chain_gradient
from gradleak.models.base import Examples, Target
from gradleak.updates.update import GRANTS, ClientRule, Known, Manifest, Update

# What an attacker is told unless the audit says otherwise.
DEFAULT_GRANTS = ("batch_size",)


class Sender:
    """The part of a federated client that does not depend on what its examples are."""

    model: Target

    def __init__(self, known: Collection[str], client: ClientRule | str, defenses: Sequence[Defense | str]) -> None:
        strange = set(known) - set(GRANTS)
        if strange:
            raise GradleakError(f"unknown grant {sorted(strange)[0]!r}; known: {', '.join(GRANTS)}")
        self.known = tuple(name for name in GRANTS if name in known)
        self.rule = ClientRule.parse(client) if isinstance(client, str) else client
        self.defenses = [parse_defenses([d])[0] if isinstance(d, str) else d for d in defenses]

    def defended(self, batch: Examples, targets: Tensor, seed: int) -> dict[str, Tensor]:
        """What the client computes from its batch, after all defences; `seed` fixes dropout and noise."""
        # Dropout draws from the seed itself; the same numbers once more would tie the defences' noise to it.
        own = derive_seed(seed, "defences") if self.rule.mode == "train" else seed
        generator = torch.Generator().manual_seed(own)
        names = list(self.model.parameters())
        for defense in self.defenses:
            names = defense.trained(names, self.model)
        gradient = chain_gradient(self.defenses, generator) or plain_gradient
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            tensors = local_training(self.model, batch, targets, self.rule, names, gradient)
        for defense in self.defenses:
            tensors = defense.apply(tensors, self.model, generator)
        return tensors

    def sent(self, tensors: dict[str, Tensor], known: Known) -> Update:
        """The tensors with the manifest that goes with them."""
        manifest = Manifest(
            task=self.model.task,
            family=self.model.family,
            model_fingerprint=self.model.fingerprint,
            client=self.rule,
            defenses=tuple(str(defense) for defense in self.defenses),
            known=known,
        )
        return Update(tensors, manifest)
