"""The gradient of a large model written to a file as the backward pass makes it: it is never in memory as a whole."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.tensor_files import MappedTensors
from gradleak.core.tensor_writer import TensorWriter
from gradleak.models.base import Examples, Target

# Updates from this many bytes on are written as they are made.
STREAMED_FROM = 768 << 20


def stream_gradient(
    model: Target, batch: Examples, targets: Tensor, names: Sequence[str], take: Callable[[str, Tensor], None]
) -> None:
    """Hand over the gradient of every named parameter as soon as the backward pass has it, and forget it.

    The numbers are those of `clients.training.plain_gradient`: a parameter that is used several times comes once,
    with the sum. Parameters that the loss does not reach do not come.
    """
    parameters = model.parameters()
    wanted = {name: parameters[name] for name in names}

    def hand_over(name: str) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            if parameter.grad is not None:
                take(name, parameter.grad)
                parameter.grad = None

        return hook

    handles = [p.register_post_accumulate_grad_hook(hand_over(name)) for name, p in wanted.items()]
    try:
        torch.autograd.backward(model.batch_loss(batch, targets), inputs=list(wanted.values()))
    finally:
        for handle in handles:
            handle.remove()
        for parameter in wanted.values():
            parameter.grad = None


@contextmanager
def file_of_tensors(names: Sequence[str], size: int) -> Iterator[tuple[TensorWriter, Callable[[], MappedTensors]]]:
    """A writer to a private temporary file, and what maps the file once all is written.

    The file has no name by then, so that it is gone as soon as nobody uses its tensors any more.
    """
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    if size > free:
        raise GradleakError(
            f"the update needs {size / 1e9:,.1f} GB on the disk, and {folder} has {free / 1e9:,.1f} GB; "
            "set TMPDIR to a folder with more room"
        )
    with tempfile.NamedTemporaryFile(prefix="gradleak-", suffix=".safetensors") as stream:  # mode 0600

        def mapped() -> MappedTensors:
            writer.finish()
            tensors = MappedTensors(Path(stream.name))
            tensors.finite = True  # looked at when they were written
            return tensors

        writer = TensorWriter(stream, names)
        try:
            yield writer, mapped
        except OSError as error:
            raise GradleakError(f"cannot write the update to {folder}: {error.strerror or error}") from error
