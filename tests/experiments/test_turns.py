"""Within a budget every setting has its turn: a trial that goes on and on is cut, and gets further the next time."""

import json
import time
from typing import ClassVar

import pytest
from tiny import tiny_model, tiny_tokenizer

from gradleak.attacks.base import Attack, Reconstruction
from gradleak.experiments.experiment import RunOptions
from gradleak.experiments.frontier.run import frontier
from gradleak.experiments.frontier.spec import FrontierSpec
from gradleak.experiments.runner.cell import Part

INLINE = RunOptions(executor="inline")
NOISY = ["noise:sigma=10.0", "noise:sigma=11.0", "noise:sigma=12.0"]


class Stubborn(Attack):
    """Reads nothing, and takes its time over it where there is noise."""

    summary = "for tests"
    seconds: ClassVar[float] = 1e9

    def run(self, updates, model, context):
        started = time.monotonic()
        while updates[0].manifest.defenses and time.monotonic() - started < self.seconds:
            if context.budget.over:
                return [Reconstruction(status=context.budget.reason) for _ in updates]
            time.sleep(0.01)
        return [Reconstruction() for _ in updates]


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    tiny_model("bert", "classification").module.save_pretrained(place)
    tiny_tokenizer("bert").save_pretrained(place)
    return FrontierSpec(
        model=str(place), trials=2, attacks=[f"{__name__}:Stubborn"], defenses=NOISY,
        utility={"rounds": 1, "clients": 1, "batch_size": 2, "seeds": 1, "test_rows": 4},
    )  # fmt: skip


def begun(folder, what):
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return {line["cell"] for line in lines if line["event"] == "begun" and what in line["cell"]}


def test_a_trial_that_never_ends_holds_up_no_other(spec, tmp_path):
    """A turn used to end with a trial only, so one that did not end had all the rest of the time."""
    result = frontier(spec, tmp_path, options=INLINE, budget=20.0)
    assert len(begun(tmp_path, "training")) == 4, "every setting was trained"
    assert len(begun(tmp_path, "tubborn")) == 4, "and every one attacked"
    assert [point.score is None for point in result.points] == [False, True, True, True]
    assert all(point.cost is not None for point in result.points)


def test_a_trial_that_was_cut_gets_further_until_it_ends(spec, tmp_path, monkeypatch):
    """The first turn is 20 / 4 / 9 seconds, and a trial may last four of them; this one needs more."""
    monkeypatch.setattr(Stubborn, "seconds", 3.0)
    result = frontier(spec, tmp_path, options=INLINE, budget=20.0)
    assert any(point.score is not None for point in result.points[1:])
    assert frontier(spec, tmp_path, options=INLINE).status == "completed"


def test_what_a_cut_trial_took_is_kept_until_one_ends():
    before = Part(id="a", seconds=4.0).joined(Part(id="a", seconds=6.0, cut=6.0))
    assert (before.seconds, before.cut) == (10.0, 6.0)
    assert before.joined(Part(id="a", seconds=7.0)).cut == 0.0
