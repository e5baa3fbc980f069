"""Makes four_bit.safetensors, matrices packed by bitsandbytes itself: run it where that is installed."""

from pathlib import Path

import torch
from safetensors.torch import save_file


def made() -> dict[str, torch.Tensor]:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    tensors = {}
    torch.manual_seed(0)
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                matrix = (0.05 * torch.randn(7, 85)).to(dtype)  # the last block is not full, the last byte is half
                packed, state = quantize_4bit(matrix, quant_type=kind, compress_statistics=nested, blocksize=64)
                name = f"{kind}-{nested}-{dtype}".replace("torch.", "")
                tensors |= {f"{name}.weight.{key}": value for key, value in state.as_dict(packed=True).items()}
                tensors |= {f"{name}.weight": packed, f"{name}.expected": dequantize_4bit(packed, state)}
    return tensors


if __name__ == "__main__":
    save_file(made(), Path(__file__).with_name("four_bit.safetensors"))
