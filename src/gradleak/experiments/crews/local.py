"""Workers on this machine, a process each."""

from __future__ import annotations

import os
import threading
import time

from gradleak.core.errors import GradleakError
from gradleak.experiments.crews.base import State
from gradleak.experiments.runner.cell import Ends, Group, Work
from gradleak.experiments.runner.worker import Death, Worker

# How often limits are looked at; a worker that has something to say is heard at once.
LOOK_EVERY = 0.2


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_that_fit(threads: int) -> int:
    """As many workers as have processors of their own. The threads of each are set by the experiment.

    They are not divided the other way round, because rounding depends on how many threads share a sum, and results
    must not depend on how many workers there are.
    """
    return max(1, cores() // threads)


class LocalCrew:
    """Processes on this machine, started when they are first needed; each keeps the model it loaded last."""

    def __init__(self, workers: int, threads: int, memory: int | None) -> None:
        """`memory`: what each may plan with, in bytes."""
        if workers < 1:
            raise GradleakError("an experiment needs at least one worker")
        self._woken = threading.Event()
        self._workers = [Worker(threads, memory, woken=self._woken) for _ in range(workers)]

    @property
    def room(self) -> int:
        return len(self._workers) - self.busy

    @property
    def busy(self) -> int:
        return sum(bool(worker.cells) for worker in self._workers)

    def start(self, work: Work) -> None:
        free = [worker for worker in self._workers if not worker.cells]
        free[0].start(work)

    def wait(self, seconds: float) -> list[tuple[Group, Ends | Death]]:
        deadline = time.monotonic() + seconds
        while True:
            self._woken.clear()
            ended = self._ended()
            left = deadline - time.monotonic()
            if ended or left <= 0:
                return ended
            self._woken.wait(min(LOOK_EVERY, left))

    def _ended(self) -> list[tuple[Group, Ends | Death]]:
        ended = []
        for worker in self._workers:
            if (cells := worker.cells) and (end := worker.poll()) is not None:
                ended.append((cells, end))
        return ended

    def states(self) -> list[State]:
        return [State(worker.cells[0].id, worker.what, worker.share) for worker in self._workers if worker.cells]

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
