"""A run that its budget ends is gone on with: finished trials and rounds are never done again, and both halves of a
frontier begin at once. Work is counted, not time."""

import json
import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model, tiny_tokenizer

from gradleak import utility
from gradleak.core.budget import Budget
from gradleak.core.progress import Progress
from gradleak.data.texts import Row
from gradleak.experiments.experiment import RunOptions, preview
from gradleak.experiments.frontier.run import FrontierExperiment, frontier
from gradleak.experiments.frontier.spec import FrontierSpec
from gradleak.experiments.runner.store import PARTS, read_cells
from gradleak.experiments.sweep.run import sweep
from gradleak.experiments.sweep.spec import SweepSpec
from gradleak.report.frontier import render_frontier

# An attack that writes down every update it is given, and can be slow.
ATTACK = """
import os, time
from gradleak import Attack, Reconstruction, Sentence

class Counted(Attack):
    name = "counted"
    summary = "says one word, and writes down for which update"
    def run(self, updates, model, context):
        answers = []
        for seed in context.seeds:
            with open(os.environ["WORKED"], "a") as stream:
                stream.write(f"{seed}\\\\n")
            time.sleep(float(os.environ.get("SLOW", 0)))
            context.progress.begin("counted", 1, "answers")
            context.progress.advance(1)
            context.progress.end()
            tokens = model.tokenizer("loan", add_special_tokens=False)["input_ids"]
            sentence = Sentence(text="loan", tokens=tokens, confidence=0.1)
            status = os.environ.get("STATUS") or context.budget.reason
            answers.append(Reconstruction(sentences=[sentence], status=status))
        return answers
"""
INLINE = RunOptions(executor="inline")
TRIALS = 4


class StopAt(Progress):
    """Ends the budget at a moment of the work: the n-th time that something is counted in `unit`."""

    def __init__(self, budget, unit, count):
        self.budget, self.unit, self.left, self.at = budget, unit, count, ""

    def begin(self, what, total, unit=""):
        self.at = unit

    def advance(self, done, *, loss=None, text=None):
        self.left -= self.at == self.unit
        if self.left == 0:
            self.budget.interrupt()


class Rounds(Progress):
    """Counts rounds of training."""

    def __init__(self):
        self.done, self.at = 0, ""

    def begin(self, what, total, unit=""):
        self.at = unit

    def advance(self, done, *, loss=None, text=None):
        self.done += self.at == "rounds"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    tiny_model("bert", "classification", layers=1).module.save_pretrained(place)
    tiny_tokenizer("bert").save_pretrained(place)
    return place


@pytest.fixture
def worked(tmp_path, monkeypatch):
    """The seeds of the updates that were attacked, in order."""
    (tmp_path / "counted_attack.py").write_text(ATTACK.replace("\\\\n", "\\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    log = tmp_path / "worked"
    log.touch()
    monkeypatch.setenv("WORKED", str(log))
    return lambda: log.read_text().split()


@pytest.fixture
def spec(model_folder):
    return FrontierSpec(
        model=str(model_folder), trials=TRIALS, attacks=["counted_attack:Counted"], defenses=["sign"],
        utility={"rounds": 2, "clients": 2, "batch_size": 2, "lr": 0.01, "seeds": 2, "test_rows": 10},
    )  # fmt: skip


def stopped(spec, out, unit, count):
    """The frontier after a run with a limit on time that ends at that moment."""
    budget = Budget(seconds=3600)
    return frontier(spec, out, options=INLINE, budget=budget, progress=StopAt(budget, unit, count))


def test_finished_trials_are_never_run_again(spec, tmp_path, worked):
    first = stopped(spec, tmp_path / "cut", "answers", 3)
    assert first.status == "interrupted"
    (part,) = (tmp_path / "cut" / PARTS).iterdir()
    assert len(json.loads(part.read_text())["trials"]) == 2, "the third was cut short"
    assert part.stat().st_mode & 0o777 == 0o600, "it holds private texts"
    left = preview(FrontierExperiment(spec), tmp_path / "cut", options=INLINE)
    assert left.statuses.get("completed", 0) < left.cells
    second = stopped(spec, tmp_path / "cut", "answers", 2)
    assert len(json.loads(part.read_text())["trials"]) == 3
    assert second.status == "interrupted"
    whole = frontier(spec, tmp_path / "cut", options=INLINE, budget=3600)
    assert whole.status == "completed"
    assert not list((tmp_path / "cut" / PARTS).iterdir())
    # Two settings of so many trials, and the two that were cut short once more.
    assert len(worked()) == 2 * TRIALS + 2
    quiet = frontier(spec, tmp_path / "quiet", options=INLINE)
    assert whole.points == quiet.points
    cut, alone = ({cell.id: cell for cell in read_cells(tmp_path / name)} for name in ("cut", "quiet"))
    assert cut.keys() == alone.keys()
    for name, cell in cut.items():
        if cell.results is not None:
            ours, theirs = cell.results.trials, alone[name].results.trials
            assert [trial.index for trial in ours] == list(range(TRIALS))
            assert [trial.scores for trial in ours] == [trial.scores for trial in theirs]


def test_what_is_kept_is_masked_if_the_cell_is(spec, tmp_path, worked):
    private = spec.model_copy(update={"audit": spec.audit.with_(redact=True)})
    stopped(private, tmp_path / "out", "answers", 3)
    (part,) = (tmp_path / "out" / PARTS).iterdir()
    (plain,) = stopped_part(spec, tmp_path / "plain")
    texts = [word for trial in plain["trials"] for text in trial["truth"] for word in text.split() if len(word) > 4]
    assert texts
    assert not any(word in part.read_text() for word in texts)
    assert frontier(private, tmp_path / "out", options=INLINE).status == "completed"


def stopped_part(spec, out):
    stopped(spec, out, "answers", 3)
    return [json.loads(path.read_text()) for path in (out / PARTS).iterdir()]


def test_what_was_measured_after_the_end_is_not_kept(spec, tmp_path, worked, monkeypatch):
    """The attack was in time, but its control and scores may have been cut short."""
    monkeypatch.setenv("STATUS", "completed")
    stopped(spec, tmp_path / "out", "answers", 3)
    (part,) = (tmp_path / "out" / PARTS).iterdir()
    assert len(json.loads(part.read_text())["trials"]) == 2
    stopped(spec, tmp_path / "out", "answers", 2)
    assert len(json.loads(part.read_text())["trials"]) == 3
    stopped(spec, tmp_path / "out", "answers", 1)
    assert not [cell for cell in read_cells(tmp_path / "out") if cell.job.kind == "audit"], "nor if it is the last"


def test_another_question_takes_nothing_of_it(spec, tmp_path, worked):
    stopped(spec, tmp_path / "out", "answers", 3)
    before = len(worked())
    other = spec.model_copy(update={"audit": spec.audit.with_(seed=5)})
    assert frontier(other, tmp_path / "out", options=INLINE).status == "completed"
    assert len(worked()) - before == 2 * TRIALS


def test_workers_tell_of_every_trial(model_folder, tmp_path, worked, monkeypatch):
    """A worker is killed when the budget ends; what it had finished is there."""
    config = SweepSpec(models=[str(model_folder)], attacks=["counted_attack:Counted"], trials=TRIALS)
    out, budget = tmp_path / "out", Budget(seconds=600)

    def watch():
        while not list(out.glob(f"{PARTS}/*.json")):
            time.sleep(0.02)
        budget.interrupt()

    monkeypatch.setenv("SLOW", "0.7")
    threading.Thread(target=watch, daemon=True).start()
    cut = sweep(config, out, options=RunOptions(workers=1), budget=budget)
    assert cut.statuses == {"unfinished": 1}
    (part,) = out.glob(f"{PARTS}/*.json")
    kept = [trial["seed"] for trial in json.loads(part.read_text())["trials"]]
    assert 1 <= len(kept) < TRIALS
    monkeypatch.setenv("SLOW", "0")
    assert sweep(config, out, options=INLINE).statuses == {"completed": 1}
    times = Counter(worked())
    assert len(times) == TRIALS
    assert all(times[str(seed)] == 1 for seed in kept)


class NeverDone:
    """Takes work and does not get anywhere."""

    room, busy = 1, 0

    def start(self, work):
        self.room, self.busy = 0, 1

    def wait(self, seconds):
        time.sleep(min(seconds, 0.05))
        return []

    def states(self):
        return []

    def close(self):
        pass


def test_a_budget_too_short_for_one_trial_says_so(model_folder, tmp_path, worked):
    config = SweepSpec(models=[str(model_folder)], attacks=["counted_attack:Counted"], trials=TRIALS)
    told = []
    progress = type("Told", (Progress,), {"message": lambda _, line: told.append(line)})()
    sweep(config, tmp_path / "out", options=RunOptions(crew=NeverDone()), budget=0.2, progress=progress)
    assert any("give it more time" in line for line in told)


def test_rounds_of_a_training_are_never_done_again(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "cache"))
    model = tiny_model("gpt2", "classification")
    rows = [Row("The loan was refused." if i % 2 else "Rosa moved to ward six.", 1 - i % 2) for i in range(40)]
    quick = {"rounds": 8, "clients": 2, "batch_size": 4, "lr": 3e-3, "seeds": 1, "test_rows": 20}
    budget = Budget()
    cut = utility(
        model, data=rows, out=tmp_path / "a", budget=budget, progress=StopAt(budget, "rounds", 5), **quick
    )  # fmt: skip
    assert cut.settings[0].by_seed == {}
    assert len(list((tmp_path / "cache" / "trainings").iterdir())) == 1
    rest = Rounds()
    whole = utility(model, data=rows, out=tmp_path / "a", progress=rest, **quick)
    assert rest.done == 3
    assert whole.settings == utility(model, data=rows, out=tmp_path / "b", **quick).settings
    assert not list((tmp_path / "cache" / "trainings").iterdir())


def test_a_state_that_cannot_be_read_is_done_without(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "cache"))
    model = tiny_model("gpt2", "classification")
    rows = [Row("The loan was refused.", i % 2) for i in range(20)]
    quick = {"rounds": 3, "clients": 1, "batch_size": 2, "seeds": 1, "test_rows": 4}
    budget = Budget()
    utility(model, data=rows, out=tmp_path / "a", budget=budget, progress=StopAt(budget, "rounds", 2), **quick)
    (state,) = (tmp_path / "cache" / "trainings").iterdir()
    state.write_bytes(b"no state")
    rounds = Rounds()
    assert utility(model, data=rows, out=tmp_path / "a", progress=rounds, **quick).status == "completed"
    assert rounds.done == 3


def test_both_halves_begin_within_a_budget(spec, tmp_path, worked):
    """However early it ends: after the first trial of the first attack there is a training too."""
    result = stopped(spec, tmp_path, "answers", 2)
    kinds = Counter(cell.job.kind for cell in read_cells(tmp_path))
    assert kinds["training"] >= 1
    assert result.untrained is not None


def test_a_long_audit_gives_way_to_trainings(spec, tmp_path, worked, monkeypatch):
    """It has a quarter of the budget, then its turn is over; what it finished is not done again in the same run."""
    monkeypatch.setattr("gradleak.experiments.runner.loop.TURN", 1e-9)
    assert frontier(spec, tmp_path, options=INLINE, budget=3600).status == "completed"
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    begun = [event["cell"] for event in events if event["event"] == "begun"]
    first = next(number for number, name in enumerate(begun) if not name.startswith(("untrained", "training")))
    assert begun[first + 1].startswith(("untrained", "training"))
    assert begun.count(begun[first]) > 1
    assert all(cell.attempts == 1 for cell in read_cells(tmp_path))
    assert len(worked()) == 2 * TRIALS


@given(st.integers(0, 12), st.integers(0, 40))
def test_audits_and_trainings_come_in_turn(audits, trainings):
    from gradleak.experiments.runner.loop import in_turn

    plan = [(_Cell("audit", i),) for i in range(audits)] + [(_Cell("training", i),) for i in range(trainings)]
    order = [group[0] for group in in_turn(plan)]
    assert sorted(order, key=lambda cell: (cell.job.kind, cell.number)) == [group[0] for group in plan]
    for kind in ("audit", "training"):
        numbers = [cell.number for cell in order if cell.job.kind == kind]
        assert numbers == sorted(numbers), "each kind in the order of the plan"
    for length in range(len(order) + 1):  # at any moment as large a part of one is begun as of the other
        begun = Counter(cell.job.kind for cell in order[:length])
        shares = [begun[kind] / count for kind, count in (("audit", audits), ("training", trainings)) if count]
        slack = sum(1 / count for count in (audits, trainings) if count)
        assert max(shares, default=0) - min(shares, default=0) <= slack


class _Cell:
    """As much of a cell as its turn depends on."""

    def __init__(self, kind, number):
        self.job, self.number = type("Job", (), {"kind": kind}), number


def test_the_advice_tells_what_there_is_and_what_is_missing(spec, tmp_path, worked):
    early = stopped(spec, tmp_path, "answers", 3)
    plain, defended = early.so_far
    assert early.advice.startswith("No advice yet")
    assert plain.startswith("none: counted_attack:Counted reads ROUGE-L ")
    assert "not told apart" in plain
    assert f"{TRIALS - 2} of {TRIALS} trials of counted_attack:Counted" in plain
    assert "all trials of counted_attack:Counted" in defended
    assert "2 of 2 trainings" in defended
    score = early.points[0].attacks["counted_attack:Counted"]
    assert (score.trials, score.planned) == (2, TRIALS)
    assert score.leak.low <= score.leak.mean <= score.leak.high
    page = render_frontier(early)
    assert "still missing" in page
    assert f"(2 of {TRIALS})" in page
    whole = frontier(spec, tmp_path, options=INLINE)
    assert whole.so_far == []
    assert all(point.missing == [] for point in whole.points)
    assert "still missing" not in render_frontier(whole)
    assert Path(tmp_path / "plan.json").is_file()
