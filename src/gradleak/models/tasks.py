"""What models are for, and what they read; light, so that settings can be checked before torch is loaded."""

from __future__ import annotations

from typing import Literal

Task = Literal["classification", "causal-lm"]
TargetTask = Literal["classification", "causal-lm", "image-classification"]
# "text", "images", or what a package adds.
Modality = str
MODALITY_OF: dict[TargetTask, Modality] = {
    "classification": "text",
    "causal-lm": "text",
    "image-classification": "images",
}
