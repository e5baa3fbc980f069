"""Whether defences fit a model, found out before hours are spent."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.clients.text import Client
from gradleak.defenses.chains import Chain
from gradleak.models.text import TextModel


def check_chains(chains: Sequence[Chain], model: TextModel) -> None:
    """Send one update through each, to refuse what does not fit this model before hours are spent on the others."""
    for chain in filter(None, chains):
        Client(model, defenses=chain).update(["Is this a defence of this model?"], [0])
