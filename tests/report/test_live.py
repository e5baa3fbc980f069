"""Progress while work runs: what is shown, where, and from which thread."""

import io
import threading
import time

import pytest

from gradleak.core.budget import Budget
from gradleak.core.console import SafeConsole
from gradleak.report import live
from gradleak.report.live import LiveProgress


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(live, "EVERY", 0.01)


def shown(stream, wanted):
    """Whether it appears; a minute is for machines that are busy with something else."""
    until = time.monotonic() + 60
    while wanted not in stream.getvalue() and time.monotonic() < until:
        time.sleep(0.01)
    return wanted in stream.getvalue()


def watched(terminal, **how):
    stream = io.StringIO()
    return stream, LiveProgress(SafeConsole(file=stream, force_terminal=terminal, width=160), **how)


@pytest.mark.parametrize("terminal", [True, False])
def test_any_text_is_shown_as_it_is(terminal):
    stream, progress = watched(terminal)
    with progress:
        progress.begin("[/attack] \x1b[2J", 10, "steps")
        progress.advance(3, loss=0.25, text="[/red] [bold what \u202e")
        assert shown(stream, "loss 0.2500  [/red] [bold what \\u202e")
        assert shown(stream, "[/attack] \\x1b[2J")
        progress.begin("fetching", 100e6, "bytes")
        progress.advance(50e6)
        assert shown(stream, "50.0 of 100.0 MB")
    assert "\x1b[2J" not in stream.getvalue().replace("\x1b[2K", "")


@pytest.mark.parametrize("terminal", [True, False])
def test_phase_and_time_without_a_word_from_the_work(terminal):
    stream, progress = watched(terminal, budget=Budget(3600))
    with progress:
        assert shown(stream, live.WORKING)
        progress.begin("loading minilm", 0)
        assert shown(stream, "loading minilm")
        assert shown(stream, "1s used, 60m left")
        progress.end()


def test_a_budget_that_is_used_up_has_no_time_left():
    stream, progress = watched(False, budget=Budget(0))
    with progress:
        assert shown(stream, "1s used, no time left")


def test_time_left_is_estimated_where_there_is_no_limit():
    stream, progress = watched(False)
    with progress:
        progress.begin("steps", 1000, "steps")
        time.sleep(0.02)
        progress.advance(1)
        assert shown(stream, "1 of 1,000 steps, 1s used, about")


@pytest.mark.parametrize("terminal", [True, False])
def test_work_in_many_threads(terminal):
    """Nothing hangs, and after the end nothing more is said."""
    stream, progress = watched(terminal)

    def work(number):
        for step in range(50):
            progress.begin(f"part {number}", 50, "steps")
            progress.advance(step, loss=1.0, text="x")
            progress.message(f"message {number}")
            progress.end()

    with progress:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    said = stream.getvalue()
    time.sleep(0.05)
    assert stream.getvalue() == said
    assert said.count("message ") == 200


def test_without_a_with_block_it_ends_with_its_work():
    stream, progress = watched(False)
    progress.begin("one", 0)
    assert shown(stream, "one: ")
    progress.end()
    said = stream.getvalue()
    time.sleep(0.05)
    assert stream.getvalue() == said
