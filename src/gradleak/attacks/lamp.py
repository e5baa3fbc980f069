"""LAMP: gradient matching that alternates with a search over token orders guided by a language prior."""

from __future__ import annotations

from gradleak.attacks.matching import MatchingAttack


class LampCos(MatchingAttack):
    """The variant with the cosine distance; its published settings are the defaults of the search itself."""

    name = "lamp-cos"
    summary = "LAMP with cosine distance: matching, a language prior and token reordering"
