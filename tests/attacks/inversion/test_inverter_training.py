"""The training loop on a problem that a linear layer solves: it learns, resumes as if never stopped, ends early."""

import math

import pytest
import torch
from torch import nn

from gradleak import GradleakError
from gradleak.attacks.inversion.saved import InverterManifest, load_inverter, save_inverter
from gradleak.attacks.inversion.training import STATE_FILE, Problem, TrainSettings, train
from gradleak.core.budget import Budget
from gradleak.core.progress import Progress


class Line(Problem):
    """y = 3 x₁ − x₂."""

    identity = "line"

    def __init__(self, noise=0.0):
        torch.manual_seed(0)
        self.network, self.noise = nn.Linear(2, 1), noise

    def draw(self, step, count):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(count, 2, generator=generator)
        return x, x @ torch.tensor([[3.0], [-1.0]]) + self.noise * torch.randn(count, 1, generator=generator)

    def held_out(self):
        return [self.draw(10**6, 32), self.draw(10**6 + 1, 32)]

    def loss(self, found, wanted):
        return (found - wanted).square().mean()


class StopAt(Progress):
    def __init__(self, step):
        self.step, self.budget = step, Budget()

    def advance(self, done, *, loss=None, text=None):
        if done >= self.step:
            self.budget.interrupt()


SETTINGS = TrainSettings(steps=120, batch=16, lr=0.1, check=10, patience=50)


def test_it_learns_and_keeps_no_state(tmp_path):
    problem = Line()
    training = train(problem, SETTINGS, tmp_path, Budget())
    assert (training.status, training.step) == ("completed", 120)
    assert training.best_loss < 1e-3 < training.looks[0].held_out
    assert not (tmp_path / STATE_FILE).exists()
    assert torch.allclose(problem.network.weight, torch.tensor([[3.0, -1.0]]), atol=0.1)


def test_a_stopped_training_goes_on_to_the_same_weights(tmp_path):
    whole = Line()
    train(whole, SETTINGS, tmp_path, Budget())
    stopper = StopAt(37)
    first = train(Line(), SETTINGS, tmp_path, stopper.budget, stopper)
    assert (first.status, first.step) == ("interrupted", 37)
    again = Line()
    training = train(again, SETTINGS, tmp_path, Budget())
    assert training.step == 120
    assert torch.equal(again.network.weight, whole.network.weight)


def test_one_stopped_before_its_first_look_keeps_what_it_learned_and_goes_on(tmp_path):
    whole = Line()
    train(whole, SETTINGS, tmp_path, Budget())
    stopped, stop = Line(), StopAt(7)
    training = train(stopped, SETTINGS, tmp_path, stop.budget, stop)
    assert (training.step, training.best_step) == (7, 7)
    assert math.isfinite(training.best_loss)
    assert not torch.equal(stopped.network.weight, Line().network.weight)
    resumed = Line()
    assert train(resumed, SETTINGS, tmp_path, Budget()).looks[0].step == 10
    assert torch.equal(resumed.network.weight, whole.network.weight)


def test_one_without_time_for_a_step_can_be_read_back(tmp_path):
    training = train(Line(), SETTINGS, tmp_path, Budget(seconds=0))
    manifest = InverterManifest(
        kind="text", model="m", model_fingerprint="f", tensors={}, network={}, settings=SETTINGS, training=training
    )
    save_inverter(tmp_path, {"weight": torch.zeros(1)}, manifest)
    assert load_inverter(tmp_path)[0].training.best_loss == math.inf
    assert train(Line(), SETTINGS, tmp_path, Budget()).status == "completed"


def test_another_trainings_state_is_refused(tmp_path):
    stopper = StopAt(3)
    train(Line(), SETTINGS, tmp_path, stopper.budget, stopper)
    with pytest.raises(GradleakError, match="belongs to another training"):
        train(Line(), SETTINGS.model_copy(update={"lr": 0.2}), tmp_path, Budget())


def test_it_ends_when_the_held_out_loss_no_longer_falls(tmp_path):
    settings = TrainSettings(steps=100_000, batch=16, lr=0.5, check=5, patience=3)
    training = train(Line(noise=5.0), settings, tmp_path, Budget())
    assert training.status == "completed"
    assert training.step == training.best_step + 15 < 100_000
    assert training.best_loss == min(look.held_out for look in training.looks)


def test_a_training_that_diverges_is_said(tmp_path):
    problem = Line()
    problem.loss = lambda found, wanted: found.sum() * math.inf
    with pytest.raises(GradleakError, match="diverged"):
        train(problem, SETTINGS, tmp_path, Budget())


def manifest(tmp_path):
    training = train(Line(), SETTINGS, tmp_path, Budget())
    return InverterManifest(
        kind="image", model="lenet", model_fingerprint="f", tensors={"a": (2,)}, network={}, settings=SETTINGS,
        training=training,
    )  # fmt: skip


def test_saving_and_loading(tmp_path):
    problem, written = Line(), manifest(tmp_path)
    place = save_inverter(tmp_path / "inverter", problem.network.state_dict(), written)
    read, weights = load_inverter(place)
    assert read == written
    assert torch.equal(weights["weight"], problem.network.weight)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("manifest.json", b"{}", "kind"),
        ("manifest.json", b"\xff\x00", "manifest.json"),
        ("inverter.safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00{}", "not a safetensors"),
        ("inverter.safetensors", None, "holds no inverter.safetensors"),
    ],
)
def test_broken_folders_are_refused(tmp_path, file, content, message):
    place = save_inverter(tmp_path / "inverter", Line().network.state_dict(), manifest(tmp_path))
    (place / file).unlink() if content is None else (place / file).write_bytes(content)
    with pytest.raises(GradleakError, match=message):
        load_inverter(place)
