"""The number formats that clients train and send in."""

from __future__ import annotations

import torch

from gradleak.updates.client_rule import Precision

DTYPES: dict[Precision, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
