"""The frontier from its file to its page."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import HIDDEN, LOWERED, NONE, UNCHANGED, interval, point
from tiny import tiny_model, tiny_tokenizer

from gradleak import GradleakError
from gradleak.cli import main
from gradleak.core.budget import Budget
from gradleak.core.environment import Environment
from gradleak.experiments.experiment import RunOptions
from gradleak.experiments.frontier.points import mark_front
from gradleak.experiments.frontier.run import Frontier, frontier
from gradleak.experiments.frontier.spec import FrontierSpec, load_frontier
from gradleak.report.axis import ticks
from gradleak.report.frontier import render_frontier
from gradleak.report.labels import Box, place_labels
from gradleak.report.tradeoff import frontier_figure

CONFIG = """
model: {model}
trials: 2
known: [batch_size, labels, lengths]
attacks:
  - name: dlg
    options: {{steps: 2}}
  - {{name: dlg, options: {{steps: 3, init_draws: 1}}}}
defenses: ["noise:sigma=0.001", [frozen, "noise:sigma=0.001"]]
utility: {{rounds: 2, clients: 2, batch_size: 2, lr: 0.01, seeds: 2, test_rows: 10}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frontier")
    tiny_model("bert", "classification").module.save_pretrained(folder / "model")
    tiny_tokenizer("bert").save_pretrained(folder / "model")
    (folder / "small.yaml").write_text(CONFIG.format(model=folder / "model"))
    return folder


def load(place):
    return load_frontier(place / "small.yaml", {})


def test_a_spent_budget_marks_all_unfinished(place, tmp_path):
    result = frontier(load(place), tmp_path, budget=Budget(seconds=0))
    assert result.status == "budget-exhausted"
    assert {p.status for p in result.points} == {"unfinished"}
    assert not any(p.on_front for p in result.points)
    assert result.advice.startswith("No advice yet")
    assert "not finished" in render_frontier(result)
    ElementTree.fromstring(frontier_figure(result))


class NoPrior:
    """Guesses at once; counting n-grams takes longer than all the rest."""

    def sample(self, length, generator):
        return [7] * length


def test_from_the_command_to_the_page_and_again(place, monkeypatch, capsys):
    out = place / "out"
    monkeypatch.setattr("gradleak.attacks.control.load_prior", lambda *_: NoPrior())
    command = ["gradleak", "frontier", str(place / "small.yaml"), "--out", str(out), "--executor", "inline"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    numbers = json.loads((out / "frontier.json").read_text())
    assert [p["label"] for p in numbers["points"]] == ["none", "noise:sigma=0.001", "frozen + noise:sigma=0.001"]
    assert list(numbers["points"][0]["attacks"]) == ["dlg steps=2", "dlg steps=3 init_draws=1"]
    assert numbers["advice"] in " ".join(capsys.readouterr().out.split())
    page = (out / "frontier.html").read_text()
    assert "dlg steps=3" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    ElementTree.parse(out / "frontier.svg")
    kept = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    assert len(kept) == 3 * 2 + 4 * 2  # audits; trainings and the untrained model
    again = frontier(load(place), out, options=RunOptions(executor="inline"))
    assert [p.model_dump() for p in again.points] == numbers["points"]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        ("dgl", "unknown attack 'dgl'; did you mean 'dlg'"),
        ({"name": "dlg", "options": {"step": 1}}, "has no option 'step'; did you mean 'steps'"),
    ],
)
def test_attacks_are_refused_before_any_work(place, tmp_path, attack, message):
    with pytest.raises(GradleakError, match=message):
        frontier(FrontierSpec(model=str(place / "model"), attacks=[attack]), tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("defences: [none]", "unknown key 'defences'; did you mean 'defenses'"),
        ("utility: [3]", "utility: "),
        ("utility: {round: 3}", "unknown key 'utility.round'; did you mean 'rounds'"),
        ("attacks: [{name: dlg, option: {}}]", "unknown key 'attacks.0.option'; did you mean 'options'"),
        ("attacks: [auto, auto]", "listed twice"),
        ("attacks: []", "attacks: "),
        ("defenses: noise", "must be a list"),
        ("defenses: [{noise: 1}]", "must be a list"),
        ("defenses: ['nose:sigma=1']", "unknown defence 'nose'; did you mean 'noise'"),
        ("known: [label]", "unknown value 'label'; did you mean 'labels'"),
        ("trials: 0", "trials: Input should be greater"),
        ("window: 1", "window: Input should be greater"),
        ("observe: head", "unknown key 'observe'"),
        ("metric: recall", "metric: "),
        ("client: fedsdg", "client 'fedsdg'"),
    ],
)
def test_bad_configurations(tmp_path, line, message):
    (tmp_path / "bad.yaml").write_text(line)
    with pytest.raises(GradleakError, match=r"bad\.yaml: ") as refused:
        load_frontier(tmp_path / "bad.yaml", {})
    assert message in str(refused.value)


def test_clients_train_on_as_many_rows_as_are_attacked_unless_told(tmp_path):
    path = tmp_path / "f.yaml"
    for text, expected in (("batch_size: 3", 3), ("{batch_size: 3, utility: {batch_size: 5}}", 5), ("seed: 1", 1)):
        path.write_text(text)
        assert load_frontier(path, {}).utility.batch_size == expected


def sample(points, metric="accuracy", **change):
    values = {
        "created": "2026-01-01T00:00:00+00:00", "status": "completed", "model_fingerprint": "f" * 32,
        "environment": Environment(
            gradleak="0.0.0", python="3.11.0", platform="test", processor="test", packages={"torch": "2"},
            device="cpu", threads=2, git_commit=None, git_dirty=None,
        ),
        "spec": FrontierSpec(attacks=[{"name": "auto"}]), "measure": "rougeL", "metric": metric,
        "points": mark_front(points, metric),
        "control": interval((8, 6, 10)), "untrained": interval((50, 48, 52)), "majority": interval((52, 52, 52)),
        "advice": "Use a.", **change,
    }  # fmt: skip
    return Frontier.model_construct(**values)


def test_figure_shows_every_point_the_floor_and_the_front():
    hostile = '<script>"&'
    points = [
        NONE,
        point("a", LOWERED),
        point(hostile, HIDDEN, utility=(60, 59, 61)),
        point("b", UNCHANGED, status="unfinished"),
    ]
    figure = frontier_figure(sample(points))
    tree = ElementTree.fromstring(figure)
    space = "{http://www.w3.org/2000/svg}"
    texts = [node.text for node in tree.iter(f"{space}text")]
    for expected in ("no defence", "a", hostile, "b (unfinished)", "control: guessing without the update"):
        assert expected in texts
    assert len(list(tree.iter(f"{space}circle"))) == 4
    assert "<script>" not in figure
    assert len(list(tree.iter(f"{space}polyline"))) == 1


def test_figures_of_nothing_of_one_and_of_perplexity():
    for points in ([], [NONE]):
        ElementTree.fromstring(frontier_figure(sample(points, control=None, untrained=None)))
    low, high = point("none", UNCHANGED, utility=(20, 19, 21)), point("a", LOWERED, utility=(40, 35, 45))
    tree = ElementTree.fromstring(
        frontier_figure(sample([low, high], "perplexity", untrained=interval((60, 60, 60))))
    )
    better, worse = (float(c.get("cx")) for c in tree.iter("{http://www.w3.org/2000/svg}circle"))
    assert better > worse


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(60, 800), st.floats(20, 440)), min_size=1, max_size=9))
def test_labels_keep_apart_and_inside(points):
    area = Box(40, 10, 840, 460)
    boxes = place_labels(points, ["noise:sigma=0.01"] * len(points), area)
    for number, box in enumerate(boxes):
        assert area.left <= box.left <= box.right <= area.right
        assert area.top <= box.top <= box.bottom <= area.bottom
        assert not any(box.overlap(other) for other in boxes[:number])


@given(st.floats(-1e3, 1e6), st.floats(1e-3, 1e6))
def test_ticks_lie_between(first, width):
    found = ticks(first, first + width)
    assert all(first - 1e-6 * width <= value <= first + width * (1 + 1e-6) for value in found)
    assert 2 <= len(found) <= 8


def test_the_example_is_well_formed():
    config = load_frontier(Path(__file__).parents[2] / "examples" / "frontier.yaml", {"trials": 1})
    assert len(config.defenses) == 6
    assert config.utility.batch_size == config.audit.batch_size == 4
    assert config.audit.trials == 1
