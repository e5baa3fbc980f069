"""Which weights decay while a client trains; both the client and whoever undoes the decay ask here."""

from __future__ import annotations

from torch import nn

from gradleak.models.base import Target
from gradleak.updates.client_rule import ClientRule


def decaying(model: Target, rule: ClientRule) -> set[str]:
    """The names of the trainable parameters that the rule's weight decay acts on; none where it is 0.

    `decay=matrices` leaves out biases and the weights of norms, as Hugging Face's Trainer does: it too looks at names
    and at kinds of layers, not at shapes, so a vector that is neither (DoRA's magnitudes) does decay.
    """
    if not rule.wd:
        return set()
    if rule.decay == "all":
        return set(model.parameters())
    return {
        name
        for name in model.parameters()
        if "bias" not in name.lower() and not _is_norm(model.module.get_submodule(name.rpartition(".")[0]))
    }


def _is_norm(owner: nn.Module) -> bool:
    return "norm" in type(owner).__name__.lower()
