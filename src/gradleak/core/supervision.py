"""Watched work: it runs in a thread of its own and ends when its budget does, whether it looks at it or not."""

from __future__ import annotations

import contextvars
import ctypes
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from gradleak.core.budget import Budget, Stopped

# How often the budget is looked at.
LOOK_EVERY = 0.2
# Seconds after the end in which work may see by itself that its budget is over, and answer with the best it has.
GRACE = 1.5
# Seconds after the end when work that sits in one long call of a library is left to itself.
PATIENCE = 3.5

Result = TypeVar("Result")

_left_behind: list[threading.Thread] = []


def supervised(
    work: Callable[[], Result], budget: Budget, *, grace: float = GRACE, patience: float = PATIENCE
) -> Result:
    """What the work gives. If it does not end with its budget, `Stopped` is raised inside it, and then here.

    Work that looks at its budget ends by itself and gives the best it has. After `grace` seconds the exception ends
    it at the next line of Python. A single call into a library cannot be ended: after `patience` seconds the work is
    left behind, and its thread ends when that call does.
    """
    task = _Task(work)
    task.start()
    try:
        while not task.done.wait(LOOK_EVERY):
            if budget.late > grace:
                task.stop()
            if budget.late > patience:
                _left_behind.append(task)
                raise Stopped
    except BaseException:  # whoever waits is stopped in turn, by Ctrl-C or by who watches it
        task.stop()
        raise
    return task.outcome()


def left_behind() -> bool:
    """Whether some work still sits in a call that could not be ended. Only the end of the process ends it."""
    return any(thread.is_alive() for thread in _left_behind)


class _Task(threading.Thread, Generic[Result]):
    """A thread that keeps what its work came to. It does not keep the process alive."""

    def __init__(self, work: Callable[[], Result]) -> None:
        super().__init__(daemon=True, name="gradleak work")
        self.done = threading.Event()
        self._context = contextvars.copy_context()
        self._work = work
        self._given: list[Result] = []
        self._error: BaseException | None = None
        self._stopped = False

    def run(self) -> None:
        try:
            try:
                self._given.append(self._context.run(self._work))
            except BaseException as error:  # raised again where the work is waited for
                self._error = error
        except Stopped as error:  # it came in the very moment when the work was done
            self._error = error
        finally:
            self.done.set()

    def stop(self) -> None:
        """Raise `Stopped` at the next line of Python that the work comes to; once, so that it can clean up."""
        if not self._stopped and self.ident is not None and not self.done.is_set():
            self._stopped = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(Stopped))

    def outcome(self) -> Result:
        if self._given:
            return self._given[0]
        assert self._error is not None
        raise self._error
