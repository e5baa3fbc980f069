"""A budget is a promise: whatever an attack does, it ends when its time does, with the best that it kept."""

import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from tiny import tiny_model

from gradleak import Client, attack
from gradleak.attacks.base import Attack, Reconstruction, Sentence
from gradleak.audits.run import audit
from gradleak.core.budget import Budget, Stopped
from gradleak.core.supervision import supervised

# Far above what stopping takes and far below what the work would take: a machine may be busy.
LONG = 120.0


def partial() -> Reconstruction:
    return Reconstruction(sentences=[Sentence(text="a part", tokens=[5], confidence=0.5)])


class Deaf(Attack):
    """Never looks at its budget, but comes back to Python now and then."""

    def run(self, updates, model, context):
        context.keep(0, partial())
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            time.sleep(0.01)
        return [Reconstruction() for _ in updates]


class Stuck(Attack):
    """Sits in one call of a library."""

    def run(self, updates, model, context):
        context.keep(0, partial())
        time.sleep(LONG)
        return [Reconstruction() for _ in updates]


class Catching(Attack):
    """Catches every error, as attacks of others may."""

    def run(self, updates, model, context):
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            try:
                time.sleep(0.01)
            except Exception:
                continue
        return [Reconstruction() for _ in updates]


@pytest.fixture
def update(tiny_bert):
    return Client(tiny_bert).update(["Rosa moved to ward six."], [0])


@pytest.mark.parametrize(("kind", "kept"), [(Deaf, ["a part"]), (Stuck, ["a part"]), (Catching, [])])
def test_an_attack_that_does_not_look_is_ended_and_answers_with_what_it_kept(update, tiny_bert, kind, kept):
    began = time.monotonic()
    (answer,) = attack(update, tiny_bert, f"{kind.__module__}:{kind.__name__}", budget=0.3)
    assert time.monotonic() - began < LONG / 2
    assert answer.status == "budget-exhausted"
    assert [sentence.text for sentence in answer.sentences] == kept
    assert [reason.kind for reason in answer.reasons] == ([] if kept else ["nothing-yet"])


@pytest.mark.parametrize("name", ["exact", "auto", "lamp-cos", "dlg", "subspace", "bag", "film"])
def test_no_time_at_all(tiny_bert, name):
    model = tiny_model("gpt2", "causal-lm") if name == "film" else tiny_bert
    update = Client(model).update(["Rosa moved to ward six.", "The loan was refused."], [0, 1])
    (answer,) = attack(update, model, name, budget=0.0)
    assert answer.status in ("completed", "budget-exhausted")


def test_a_search_without_a_start_invents_no_words(update, tiny_bert):
    (answer,) = attack(update, tiny_bert, "lamp-cos", budget=0.0)
    assert answer.sentences == []
    assert not answer.bag


@pytest.mark.parametrize("size", [100_000])
def test_a_batch_size_that_a_manifest_claims_cannot_defeat_it(update, tiny_bert, size):
    known = update.known.model_copy(update={"batch_size": size})
    claimed = type(update)(update.tensors, update.manifest.model_copy(update={"known": known}))
    for name in ("auto", "lamp-cos", "subspace", "exact"):
        budget = Budget(1.0)
        (answer,) = attack(claimed, tiny_bert, name, budget=budget)
        assert budget.used < LONG / 2
        assert answer.status in ("completed", "budget-exhausted")


def test_trials_that_there_is_no_time_for_are_not_begun(tiny_bert):
    budget = Budget(0.0)
    results = audit(tiny_bert, data=["Rosa moved to ward six.", "The loan was refused."] * 4, trials=4, budget=budget)
    assert results.status == "budget-exhausted"
    assert len(results.trials) == 1  # without one there is nothing to tell
    assert results.trials[0].control_scores


def test_steps_are_no_time(update, tiny_bert):
    """A limit on steps ends work at the same point on every machine: nobody ends it from outside."""
    first, second = (attack(update, tiny_bert, "lamp-cos", budget=Budget(steps=5))[0] for _ in range(2))
    assert first.sentences == second.sentences
    assert first.status == "budget-exhausted"


# --- who watches ---------------------------------------------------------------------------------


def test_work_gives_what_it_gives():
    assert supervised(lambda: 3, Budget()) == 3
    with pytest.raises(ZeroDivisionError):
        supervised(lambda: 1 / 0, Budget())


def test_work_that_looks_ends_by_itself():
    budget = Budget(0.2)

    def looks():
        while not budget.over:
            time.sleep(0.01)
        return "the best it has"

    assert supervised(looks, budget) == "the best it has"


def test_work_in_work_is_stopped_too():
    inner_ended = threading.Event()

    def inner():
        try:
            end = time.monotonic() + LONG
            while time.monotonic() < end:
                time.sleep(0.01)
        finally:
            inner_ended.set()

    with pytest.raises(Stopped):
        supervised(lambda: supervised(inner, Budget()), Budget(0.1), grace=0.1)
    assert inner_ended.wait(LONG / 2)


def test_a_part_is_late_with_the_whole():
    whole = Budget(1000)
    part = whole.part(0.5)
    assert part.late == 0
    whole.interrupt()
    assert part.late > 0
    with pytest.raises(Stopped):
        part.check()


def test_the_main_work_leaves_time_for_closing():
    whole = Budget(100)
    assert whole.before_closing().seconds == pytest.approx(95.5, abs=0.5)
    assert Budget(1).before_closing().seconds == pytest.approx(0.8, abs=0.05)
    assert Budget().before_closing().seconds is None


def test_a_part_has_no_more_left_than_the_whole():
    assert Budget(10).limited(1000, None).left == pytest.approx(10, abs=0.5)
    assert Budget(10).limited(None, None).before_closing().seconds == pytest.approx(8.5, abs=0.5)
    assert Budget().limited(None, 3).left is None


def test_closing_ends_after_the_end():
    whole = Budget(0)
    assert whole.over
    assert not whole.closing().over
    assert whole.closing().left > 0
    assert Budget().closing().left is None


# --- Ctrl-C --------------------------------------------------------------------------------------

SCRIPT = """
import signal, sys, time, threading
from pathlib import Path
sys.path.insert(0, {tests!r})
from gradleak.cli.session import finish, live
from gradleak.core.budget import Budget
from gradleak.core.supervision import supervised
from gradleak.core.budget import Stopped
import os

def work(progress):
    print("working", flush=True)
    try:
        supervised(lambda: time.sleep(120), budget)
    except Stopped:
        print("kept", flush=True)

budget = Budget()
live(budget, work)
sys.stdout.flush()
os._exit(130 if budget.interrupted else 0)
"""


@pytest.fixture
def working(tmp_path):
    script = tmp_path / "work.py"
    script.write_text(textwrap.dedent(SCRIPT.format(tests=str(tmp_path))))
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "working\n"
    yield process
    process.kill()
    process.wait()


def test_ctrl_c_is_answered_and_the_best_is_kept(working):
    working.send_signal(signal.SIGINT)
    assert "stopping" in working.stderr.readline()
    out, _ = working.communicate(timeout=LONG / 2)
    assert out == "kept\n"
    assert working.returncode == 130


def test_the_second_ctrl_c_ends_at_once(working):
    working.send_signal(signal.SIGINT)
    assert "stopping" in working.stderr.readline()
    working.send_signal(signal.SIGINT)
    out, _ = working.communicate(timeout=LONG / 2)
    assert out == ""
    assert working.returncode == 130
