"""The process that runs cells: a line of JSON in for each group, lines out.

It is a process of its own because a cell must be stoppable from outside: one that takes too much memory or hangs
inside a library call cannot stop itself. It ends when its input does, so it never outlives whoever started it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Any

from gradleak.core.progress import Progress

if TYPE_CHECKING:
    from gradleak.experiments.runner.subjects import Subjects

SEND_EVERY = 0.5


class MessageProgress(Progress):
    """Progress as messages: every phase, and how far it is at most every half second."""

    def __init__(self, send: Messages) -> None:
        self._send = send
        self._what, self._total, self._sent = "", 1.0, 0.0

    def begin(self, what: str, total: float, unit: str = "") -> None:
        self._what, self._total = what, total or 1.0
        self._tell(0.0)

    def advance(self, done: float, *, loss: float | None = None, text: str | None = None) -> None:
        if time.monotonic() - self._sent > SEND_EVERY:
            self._tell(min(1.0, done / self._total))

    def _tell(self, share: float) -> None:
        self._sent = time.monotonic()
        self._send(event="progress", what=self._what, share=share)


class Messages:
    """Writes one message a line."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, **message: Any) -> None:
        with self._lock:
            self._stream.write(json.dumps(message).encode() + b"\n")
            self._stream.flush()


def main() -> None:
    """Take cells from standard input until it ends."""
    # Messages keep the real standard output to themselves; what libraries print goes to the error output.
    send = Messages(os.fdopen(os.dup(sys.stdout.fileno()), "wb"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    subjects = _prepare(requests.get())
    while True:
        request = requests.get()
        send(event="ended", cells=_run(request, subjects, send))


def _listen(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    os._exit(0)  # whoever started this process is gone, and nobody waits for the cell any more


def _prepare(settings: dict[str, Any]) -> Subjects:
    import torch

    from gradleak.core.memory import plan_with
    from gradleak.experiments.runner.subjects import Subjects

    torch.set_num_threads(settings["threads"])
    plan_with(settings["memory"])
    return Subjects()


def _run(request: dict[str, Any], subjects: Subjects, send: Messages) -> list[dict[str, Any]]:
    from gradleak.experiments.runner.cell import Cell, Limits, Part, Work
    from gradleak.experiments.runner.running import run_cells

    work = Work(
        cells=tuple(map(Cell.model_validate, request["cells"])),
        limits=Limits.model_validate(request["limits"]),
        one_by_one=request["one_by_one"],
        turn=request["turn"],
        kept={part.id: part for part in map(Part.model_validate, request["kept"])},
        keep=lambda part: send(event="part", part=part.model_dump(mode="json")),
    )
    done = run_cells(work, subjects, begun=lambda: send(event="loaded"), progress=MessageProgress(send))
    return [cell.model_dump(mode="json") for cell in done]


if __name__ == "__main__":
    main()
