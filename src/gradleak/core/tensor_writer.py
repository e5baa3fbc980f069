"""Writing safetensors files tensor by tensor, so that no two need to be in memory at once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import IO, Any

import torch
from torch import Tensor

TYPE_NAMES = {
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.bool: "BOOL",
    torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
}  # fmt: skip
# Room for everything but the name in a tensor's entry of the header: its type, its sides and where it lies.
ENTRY = 240


class TensorWriter:
    """Writes tensors in the order in which they come; what is not known before, the header, is written at the end.

    >>> import io
    >>> from safetensors.torch import load
    >>> stream = io.BytesIO()
    >>> writer = TensorWriter(stream, ["a", "b"])
    >>> writer.add("b", torch.ones(2))
    >>> writer.finish()
    >>> load(stream.getvalue())
    {'b': tensor([1., 1.])}
    """

    def __init__(self, stream: IO[bytes], names: Iterable[str]) -> None:
        """`names` are those that may come; room is left for them."""
        self._stream, self._names, self._end = stream, list(names), 0
        self._entries: dict[str, Any] = {}
        room = sum(len(json.dumps(name)) + ENTRY for name in self._names) + 2
        self._room = -(-room // 8) * 8
        stream.seek(8 + self._room)

    def add(self, name: str, tensor: Tensor) -> None:
        plain = tensor.detach().cpu().contiguous()
        size = plain.numel() * plain.element_size()
        if size:
            self._stream.write(plain.reshape(-1).view(torch.uint8).numpy().data)
        place = [self._end, self._end + size]
        self._entries[name] = {"dtype": TYPE_NAMES[plain.dtype], "shape": list(plain.shape), "data_offsets": place}
        self._end += size

    @property
    def written(self) -> int:
        """How many tensors have come."""
        return len(self._entries)

    def finish(self) -> None:
        """Write the header, in the order of the names that could come, padded with spaces as the format allows."""
        entries = {name: self._entries[name] for name in self._names if name in self._entries}
        header = json.dumps(entries, separators=(",", ":")).encode().ljust(self._room)
        assert len(header) == self._room
        self._stream.seek(0)
        self._stream.write(len(header).to_bytes(8, "little") + header)
        self._stream.flush()
