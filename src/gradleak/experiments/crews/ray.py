"""Workers on a Ray cluster: each actor watches over one worker process, the same one that runs cells on this machine.

The driver alone writes cells, so the nodes need no common disk for them. They need this package, and models and data
under the same paths; each cell checks that all three are what the experiment was planned with.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradleak.core.errors import GradleakError
from gradleak.experiments.crews.base import State
from gradleak.experiments.crews.local import LOOK_EVERY, workers_that_fit
from gradleak.experiments.runner.cell import Cell, Ends, Group, Limits, Part, Work
from gradleak.experiments.runner.worker import Death, Worker, planned_memory

# How many actors are asked at a time how far they are.
ASKED = 50


class Seat:
    """One worker on some node. `state` answers while `run` is at work, also with what was finished since."""

    def __init__(self, threads: int, limits: str, device: str, folder: str) -> None:
        self._limits = Limits.model_validate_json(limits)
        self._woken = threading.Event()
        self._parts: deque[Part] = deque()
        memory = planned_memory(self._limits, device, workers_that_fit(threads))
        self._worker = Worker(threads, memory, folder if Path(folder).is_dir() else None, self._woken)

    def run(self, cells: list[str], one_by_one: bool, turn: float | None, kept: list[str]) -> Ends | Death:
        parts = {part.id: part for part in map(Part.model_validate_json, kept)}
        group = tuple(map(Cell.model_validate_json, cells))
        self._worker.start(Work(group, self._limits, one_by_one, turn, parts, self._parts.append))
        while (end := self._worker.poll()) is None:
            self._woken.wait(LOOK_EVERY)
            self._woken.clear()
        return end

    def state(self) -> tuple[str, float, list[str]]:
        parts = [self._parts.popleft().model_dump_json() for _ in range(len(self._parts))]
        return self._worker.what, self._worker.share, parts


class RayCrew:
    """Actors on a cluster, each with its share of the processors and, if asked for, of a GPU."""

    def __init__(
        self,
        threads: int,
        limits: Limits,
        *,
        device: str = "cpu",
        workers: int | None = None,
        address: str | None = None,
        gpus: float = 0.0,
    ) -> None:
        self._ray = connected(address)
        self._arguments = (threads, limits.model_dump_json(), device, str(Path.cwd()))
        # One call at a time runs a cell; the other may ask how far it is.
        self._kind = self._ray.remote(num_cpus=threads, num_gpus=gpus, max_concurrency=2)(Seat)
        self._size = workers or _fitting(self._ray.cluster_resources(), threads, gpus)
        self._free: list[Any] = []
        self._busy: dict[Any, tuple[Any, Work]] = {}
        self._pending: dict[Any, str] = {}
        self._reported: dict[str, State] = {}

    @property
    def room(self) -> int:
        return self._size - self.busy

    @property
    def busy(self) -> int:
        return len(self._busy)

    def start(self, work: Work) -> None:
        seat = self._free.pop() if self._free else self._kind.remote(*self._arguments)
        cells, kept = ([one.model_dump_json() for one in some] for some in (work.cells, work.kept.values()))
        self._busy[seat.run.remote(cells, work.one_by_one, work.turn, kept)] = (seat, work)

    def wait(self, seconds: float) -> list[tuple[Group, Ends | Death]]:
        ready, _ = self._ray.wait(list(self._busy), num_returns=1, timeout=seconds) if self._busy else ([], [])
        return [self._end(reference) for reference in ready]

    def _end(self, reference: Any) -> tuple[Group, Ends | Death]:
        seat, work = self._busy.pop(reference)
        cells = work.cells
        self._reported.pop(cells[0].id, None)
        try:
            end = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:  # the node or the actor is gone; another seat will be taken
            return cells, Death(f"its Ray actor is gone: {str(error).strip().splitlines()[0][:300]}")
        self._free.append(seat)
        return cells, end

    def states(self) -> list[State]:
        """What the actors last reported; nobody is waited for."""
        ready, _ = (
            self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
            if self._pending
            else ([], [])
        )
        running = {work.cells[0].id: (seat, work) for seat, work in self._busy.values()}
        for reference in ready:
            name = self._pending.pop(reference)
            try:
                what, share, parts = self._ray.get(reference)
            except self._ray.exceptions.RayError:
                continue
            self._reported[name] = State(name, what, share)
            if name in running:
                for part in parts:
                    running[name][1].keep(Part.model_validate_json(part))
        unasked = [name for name in running if name not in self._pending.values()]
        # Those not heard of yet come first; hundreds of questions at once would keep the driver busy.
        for name in sorted(unasked, key=lambda name: name in self._reported)[: ASKED - len(self._pending)]:
            self._pending[running[name][0].state.remote()] = name
        return [self._reported.get(name, State(name, "starting", 0.0)) for name in running]

    def close(self) -> None:
        for seat in (*self._free, *(seat for seat, _ in self._busy.values())):
            self._ray.kill(seat)
        self._free, self._busy = [], {}


def connected(address: str | None) -> Any:
    """The library, connected to a cluster, or to one that it starts here."""
    try:
        import ray
    except ImportError as error:
        raise GradleakError("this executor needs Ray: pip install 'gradleak[ray]'") from error
    if not ray.is_initialized():
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
        except Exception as error:  # it has no error of its own for a cluster that is not there or does not start
            where = f"at {address}" if address else "on this machine"
            raise GradleakError(f"no Ray cluster {where}: {str(error).splitlines()[0]}") from error
    return ray


def _fitting(there: Mapping[str, float], threads: int, gpus: float) -> int:
    """As many actors as the cluster has processors and GPUs for.

    >>> _fitting({"CPU": 16.0, "GPU": 2.0}, 2, 0.5), _fitting({"CPU": 3.0}, 2, 0.0)
    (4, 1)
    """
    by_cpu = int(there.get("CPU", 1) // threads)
    return max(1, min(by_cpu, int(there.get("GPU", 0) / gpus)) if gpus else by_cpu)
