"""TAG (Gradient Attack on Transformer-based language models): DLG with absolute differences added."""

from __future__ import annotations

from typing import ClassVar

from gradleak.attacks.base import with_defaults
from gradleak.attacks.search.dlg import BASELINE, BaselineOptions
from gradleak.attacks.search.matching_attack import MatchingAttack


class _TagBase(BaselineOptions):
    large_lr: ClassVar[float] = 0.03


TagOptions = with_defaults(_TagBase, "TagOptions", distance="l2+l1", **BASELINE)


class Tag(MatchingAttack):
    name = "tag"
    summary = "TAG: least squares plus absolute differences between gradients, no prior"
    Options = TagOptions
