"""TAG (Gradient Attack on Transformer-based language models): DLG with absolute differences added."""

from __future__ import annotations

from gradleak.attacks.base import with_defaults
from gradleak.attacks.dlg import DlgOptions
from gradleak.attacks.matching import MatchingAttack

TagOptions = with_defaults(DlgOptions, "TagOptions", distance="l2+l1")


class Tag(MatchingAttack):
    name = "tag"
    summary = "TAG: least squares plus absolute differences between gradients, no prior"
    Options = TagOptions
