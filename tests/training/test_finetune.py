"""Fine-tuning learns, writes a folder that loads, and a stopped run ends where an unbroken one does."""

import json

import pytest
import torch
from tiny import tiny_model

from gradleak import GradleakError, load_model
from gradleak.core.budget import Budget
from gradleak.core.progress import Progress
from gradleak.data.texts import Row
from gradleak.training.checkpoints import METRICS_FILE, all_models, kept_checkpoints, read_metrics
from gradleak.training.finetune import STATE_FILE, FinetuneSettings, finetune, split_rows
from gradleak.training.perplexity import perplexity

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


def test_a_stopped_run_continues_to_the_same_weights(tmp_path):
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


def test_a_run_does_not_continue_with_other_rows(tmp_path):
    budget = Budget()
    finetune(tiny_model("bert", "classification"), ROWS, tmp_path, SETTINGS, budget, StopAfter(budget, 2))
    with pytest.raises(GradleakError, match="belongs to another run"):
        finetune(
            tiny_model("bert", "classification"),
            [Row("Nothing of it is private.", 0), *ROWS[1:]],
            tmp_path,
            SETTINGS,
            Budget(),
        )


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


KEPT = SETTINGS.model_copy(update={"checkpoints": 3})
BARE = [Row(row.text, None) for row in ROWS]


def assert_same_weights(one, other):
    for name, parameter in one.parameters().items():
        torch.testing.assert_close(other.parameters()[name], parameter)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_language_model_learns_and_is_kept_on_the_way(family, tmp_path):
    untouched, model = tiny_model(family, "causal-lm"), tiny_model(family, "causal-lm")
    test = [tokens for tokens, _ in split_rows(BARE, model, KEPT)[1]]
    status, figures = finetune(model, BARE, tmp_path, KEPT, Budget())
    assert status == "completed"
    models = all_models(tmp_path)
    assert list(models) == [0, 4, 8, 12]
    assert models[12] == tmp_path
    assert_same_weights(untouched, load_model(models[0]))
    measured = {step: read_metrics(folder)["perplexity"] for step, folder in models.items()}
    for step, folder in models.items():
        again = load_model(folder)
        assert again.task == "causal-lm"
        assert measured[step] == pytest.approx(perplexity(again, test), rel=1e-3)
    assert figures["perplexity"] == measured[12] < measured[4] / 2 < measured[0] / 4


def test_a_stopped_run_keeps_the_same_checkpoints(tmp_path):
    finetune(tiny_model("llama", "causal-lm"), BARE, tmp_path / "whole", KEPT, Budget())
    for steps in (4, 2, 1):  # onto a checkpoint, between two, and right behind one
        budget = Budget()
        model = tiny_model("llama", "causal-lm")
        assert finetune(model, BARE, tmp_path / "cut", KEPT, budget, StopAfter(budget, steps))[0] == "stopped"
    assert finetune(tiny_model("llama", "causal-lm"), BARE, tmp_path / "cut", KEPT, Budget())[0] == "completed"
    whole, cut = all_models(tmp_path / "whole"), all_models(tmp_path / "cut")
    assert list(whole) == list(cut) == [0, 4, 8, 12]
    for step in whole:
        assert_same_weights(load_model(whole[step]), load_model(cut[step]))
        assert read_metrics(whole[step]) == read_metrics(cut[step])


def test_checkpoints_of_another_run_are_not_mixed_with_ours(tmp_path):
    finetune(tiny_model("llama", "causal-lm"), BARE, tmp_path, KEPT, Budget())
    with pytest.raises(GradleakError, match="another run's checkpoints"):
        finetune(tiny_model("llama", "causal-lm"), BARE, tmp_path, SETTINGS, Budget())
    assert list(kept_checkpoints(tmp_path)) == [0, 4, 8]


def test_classifiers_keep_checkpoints_too(tmp_path):
    finetune(tiny_model("bert", "classification"), ROWS, tmp_path, KEPT, Budget())
    accuracies = [read_metrics(folder)["accuracy"] for folder in all_models(tmp_path).values()]
    assert accuracies[0] < accuracies[-1] == 1.0


def test_a_text_of_one_token_has_nothing_to_predict():
    model = tiny_model("gpt2", "causal-lm")
    train, test = split_rows([Row("a", None), *BARE[:4]], model, SETTINGS)
    assert all(len(tokens) > 1 for tokens, _ in train + test)
    assert len(train) + len(test) == 4
