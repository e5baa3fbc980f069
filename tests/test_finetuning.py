"""Fine-tuning learns, writes a folder that loads, and a stopped run ends where an unbroken one does."""

import json

import pytest
import torch
from tiny import tiny_model

from gradleak import GradleakError, load_model
from gradleak.budget import Budget
from gradleak.finetuning import METRICS_FILE, STATE_FILE, FinetuneSettings, finetune
from gradleak.progress import Progress
from gradleak.scenario.data import Row

ROWS = [Row("The loan was refused." if i % 2 else "Rosa moved to ward six.", i % 2) for i in range(40)]
SETTINGS = FinetuneSettings(epochs=3, lr=5e-3, batch_size=8, held_out=0.25)


class StopAfter(Progress):
    def __init__(self, budget, steps):
        self.budget, self.left = budget, steps

    def advance(self, done, *, loss=None, text=None):
        self.left -= 1
        if self.left == 0:
            self.budget.interrupt()


def test_learns_and_writes_a_model_folder(tmp_path):
    status, figures = finetune(tiny_model("bert", "classification"), ROWS, tmp_path, SETTINGS, Budget())
    assert status == "completed"
    assert figures["accuracy"] == 1.0
    assert json.loads((tmp_path / METRICS_FILE).read_text())["mcc"] == 1.0
    assert not (tmp_path / STATE_FILE).exists()
    again = load_model(tmp_path)
    batch = again.encode(["The loan was refused."])
    assert int(again.logits(ids=batch.ids, mask=batch.mask).argmax()) == 1


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path):
    whole = tiny_model("bert", "classification")
    finetune(whole, ROWS, tmp_path / "whole", SETTINGS, Budget())
    budget = Budget()
    status, figures = finetune(
        tiny_model("bert", "classification"), ROWS, tmp_path / "cut", SETTINGS, budget, StopAfter(budget, 5)
    )
    assert (status, figures["step"]) == ("stopped", 5)
    resumed = tiny_model("bert", "classification")
    assert finetune(resumed, ROWS, tmp_path / "cut", SETTINGS, Budget())[0] == "completed"
    for name, parameter in whole.parameters().items():
        torch.testing.assert_close(resumed.parameters()[name], parameter)


def test_another_runs_state_is_refused(tmp_path):
    budget = Budget()
    finetune(tiny_model("bert", "classification"), ROWS, tmp_path, SETTINGS, budget, StopAfter(budget, 2))
    other = SETTINGS.model_copy(update={"lr": 1e-3})
    with pytest.raises(GradleakError, match="belongs to another run"):
        finetune(tiny_model("bert", "classification"), ROWS, tmp_path, other, Budget())


def test_rows_without_labels_and_too_few_rows(tmp_path):
    model = tiny_model("bert", "classification")
    with pytest.raises(GradleakError, match="needs labels"):
        finetune(model, [Row("no label")], tmp_path, SETTINGS, Budget())
    with pytest.raises(GradleakError, match="too few"):
        finetune(model, ROWS[:1], tmp_path, SETTINGS, Budget())
    with pytest.raises(GradleakError, match="classification models"):
        finetune(tiny_model("gpt2", "causal-lm"), ROWS, tmp_path, SETTINGS, Budget())
