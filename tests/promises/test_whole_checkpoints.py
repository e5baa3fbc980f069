"""A checkpoint is audited as what it is, or refused in one line: only a new head is ever drawn, and it is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from rich.console import Console
from safetensors.torch import load_file, save_file
from tiny import CASES, CONFIGS, TEXTS, tiny_model, tiny_module, tiny_tokenizer

from gradleak import GradleakError, audit, load_model, write_report
from gradleak.core.hub import reachable
from gradleak.core.progress import Progress
from gradleak.models.load import save_model
from gradleak.report.terminal import print_results

WEIGHTS = "model.safetensors"


class Heard(Progress):
    """Keeps the messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, line: str) -> None:
        self.lines.append(line)


def saved(folder: Path, family: str = "bert", kind: str = "SequenceClassification", **settings: Any) -> Path:
    """A folder with a random model of one of the library's classes."""
    tokenizer = tiny_tokenizer(family)
    config = CONFIGS[family](len(tokenizer), 2, 16)
    config.update(settings)
    torch.manual_seed(0)
    names = transformers.AutoModel if not kind else getattr(transformers, f"AutoModelFor{kind}")
    return save_model(names.from_config(config), tokenizer, folder)


def edit_weights(folder: Path, change: Any) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, {"format": "pt"})


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def refusal(folder: Path, **how: Any) -> str:
    with pytest.raises(GradleakError) as error:
        load_model(folder, **how)
    assert "weights_only" not in str(error.value)
    return str(error.value)


# --- complete, or refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "task"), CASES)
def test_a_whole_checkpoint_is_loaded_as_it_is(tmp_path, family, task):
    module = tiny_model(family, task).module
    model = load_model(save_model(module, tiny_tokenizer(family), tmp_path))
    assert (model.task, model.notes) == (task, ())
    for name, tensor in module.state_dict().items():
        assert torch.equal(model.module.state_dict()[name], tensor)


@pytest.mark.parametrize(("family", "task"), CASES)
def test_any_single_tensor_that_is_missing_is_named(tmp_path, family, task):
    save_model(tiny_model(family, task).module, tiny_tokenizer(family), tmp_path)
    whole = load_file(tmp_path / WEIGHTS)
    for name in list(whole)[:: max(1, len(whole) // 3)]:
        save_file({other: whole[other] for other in whole if other != name}, tmp_path / WEIGHTS, {"format": "pt"})
        assert f"{name!r} is not in its weight files" in refusal(tmp_path)


def test_every_second_tensor_missing(tmp_path):
    saved(tmp_path)
    count = len(load_file(tmp_path / WEIGHTS))
    edit_weights(tmp_path, lambda held: {name: held[name] for name in sorted(held)[::2]})
    assert f"and {count // 2 - 1} more are not in its weight files" in refusal(tmp_path)


def test_no_tensor_of_the_model_at_all(tmp_path):
    saved(tmp_path)
    edit_weights(tmp_path, lambda held: {"other": torch.zeros(3)})
    assert "are not in its weight files" in refusal(tmp_path)
    assert "are not in its weight files" in refusal(tmp_path, num_labels=3)


def test_another_shape_is_named(tmp_path):
    saved(tmp_path)
    name = "bert.encoder.layer.1.attention.self.key.weight"
    edit_weights(tmp_path, lambda held: {**held, name: torch.zeros(16, 8)})
    for how in ({}, {"num_labels": 3}):
        assert f"{name!r} has shape [16, 8], its config.json asks for [16, 16]" in refusal(tmp_path, **how)


def test_layers_that_the_config_does_not_have(tmp_path):
    """They would be left out in silence, and another model be audited."""
    saved(tmp_path)
    edit_config(tmp_path, num_hidden_layers=1)
    assert "'bert.encoder.layer.1." in (line := refusal(tmp_path))
    assert "its config.json has no place for" in line


def test_old_buffers_are_no_other_architecture(tmp_path):
    saved(tmp_path / "bert")
    held = {"bert.embeddings.position_ids": torch.arange(64)}
    edit_weights(tmp_path / "bert", lambda tensors: {**tensors, **held})
    saved(tmp_path / "gpt2", "gpt2", "CausalLM")
    held = {
        "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
        "transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4),
    }
    edit_weights(tmp_path / "gpt2", lambda tensors: {**tensors, **held})
    assert load_model(tmp_path / "bert").notes == load_model(tmp_path / "gpt2").notes == ()


def test_old_names_of_layer_norms_are_read(tmp_path):
    whole = load_model(saved(tmp_path))
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def renamed(name: str) -> str:
        for new, before in old.items():
            name = name.replace(new, before)
        return name

    edit_weights(tmp_path, lambda held: {renamed(name): tensor for name, tensor in held.items()})
    assert load_model(tmp_path).fingerprint == whole.fingerprint


def test_a_new_head_is_said(tmp_path):
    model = load_model(saved(tmp_path, kind=""))
    (note,) = model.notes
    assert "classifier.weight" in note
    assert "seed 0" in note
    assert load_model(tmp_path).fingerprint == model.fingerprint
    assert load_model(tmp_path, head_seed=1).fingerprint != model.fingerprint


def test_a_new_head_is_said_while_it_runs_in_the_results_and_on_the_page(tmp_path):
    folder, heard = saved(tmp_path / "model", kind=""), Heard()
    results = audit(str(folder), data=TEXTS, attack="bag", trials=1, progress=heard)
    (note,) = results.scenario.notes
    assert "classifier.weight" in note
    assert heard.lines.count(note) == 1
    console = Console(file=StringIO(), width=400)
    print_results(results, console)
    assert note in console.file.getvalue()
    assert "classifier.weight" in write_report(results, tmp_path / "page").read_text()


def test_another_number_of_classes_draws_a_new_head_and_nothing_else(tmp_path):
    model = load_model(saved(tmp_path), num_labels=5)
    assert model.num_labels == 5
    (note,) = model.notes
    assert "classifier.bias and classifier.weight" in note
    assert "pooler" not in note


def test_a_head_that_the_checkpoint_claims_must_be_there(tmp_path):
    saved(tmp_path)
    edit_weights(tmp_path, lambda held: {n: t for n, t in held.items() if not n.startswith("classifier")})
    assert "'classifier.weight' and 1 more are not in its weight files" in refusal(tmp_path)


# --- numbers that are no weights ------------------------------------------------------------------------


def test_quantised_weights_are_refused(tmp_path):
    saved(tmp_path)
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    edit_weights(tmp_path, lambda held: {**held, name: held[name].to(torch.int8)})
    assert "quantised" in (line := refusal(tmp_path))
    assert name in line
    assert "full precision" in line
    saved(tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    assert "quantised" in refusal(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinite_weights_are_refused(tmp_path, value):
    saved(tmp_path)

    def spoil(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        held["bert.pooler.dense.weight"][3, 2] = value
        return held

    edit_weights(tmp_path, spoil)
    assert "'bert.pooler.dense.weight' holds NaN or infinite values" in refusal(tmp_path)
    module = tiny_module("bert", "classification", len(tiny_tokenizer("bert")), 2, 16, 0)
    module.classifier.weight.data[0, 0] = value
    with pytest.raises(GradleakError, match=r"'classifier\.weight' holds NaN"):
        load_model(module, tokenizer=tiny_tokenizer("bert"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_read(tmp_path, dtype):
    saved(tmp_path)
    whole = load_file(tmp_path / WEIGHTS)
    edit_weights(tmp_path, lambda held: {name: tensor.to(dtype) for name, tensor in held.items()})
    model = load_model(tmp_path)
    for name, parameter in model.module.named_parameters():
        assert torch.equal(parameter, whole[name].to(dtype).float())


# --- the objective --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "kind", "said"),
    [
        ("bert", "PreTraining", "BertForPreTraining"),
        ("distilbert", "QuestionAnswering", "DistilBertForQuestionAnswering"),
        ("roberta", "MultipleChoice", "RobertaForMultipleChoice"),
        ("bert", "QuestionAnswering", "BertForQuestionAnswering"),
        ("bert", "MultipleChoice", "BertForMultipleChoice"),
        ("gpt2", "TokenClassification", "not token-classification"),
        ("llama", "TokenClassification", "not token-classification"),
    ],
)
def test_another_objective_is_refused_with_the_way_out(tmp_path, family, kind, said):
    saved(tmp_path, family, kind)
    line = refusal(tmp_path)
    assert said in line
    assert "--task classification" in line
    model = load_model(tmp_path, task="classification")
    assert model.task == "classification"
    assert any("new" in note for note in model.notes)


@pytest.mark.parametrize("kind", ["MaskedLM", "QuestionAnswering", "TokenClassification"])
def test_the_tensors_tell_where_the_config_does_not(tmp_path, kind):
    saved(tmp_path, "bert", kind)
    edit_config(tmp_path, architectures=None)
    if kind == "TokenClassification":  # its head is named like a classifier's, and so is its shape
        assert load_model(tmp_path).notes
    else:
        assert "--task classification" in refusal(tmp_path)


def test_a_sequence_to_sequence_model_is_refused(tmp_path):
    saved(tmp_path, kind="")
    edit_config(tmp_path, architectures=["BertForConditionalGeneration"], is_encoder_decoder=True)
    assert "--task classification" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("family", "kind", "about", "task"),
    [
        ("bert", "MaskedLM", {}, "masked-lm"),
        ("distilbert", "MaskedLM", {}, "masked-lm"),
        ("roberta", "MaskedLM", {}, "masked-lm"),
        ("bert", "TokenClassification", {}, "token-classification"),
        ("bert", "SequenceClassification", {"problem_type": "multi_label_classification"}, "multi-label"),
        ("bert", "SequenceClassification", {"problem_type": "regression", "num_labels": 1}, "regression"),
    ],
)
def test_a_checkpoint_is_loaded_for_what_it_was_trained_for(tmp_path, family, kind, about, task):
    saved(tmp_path, family, kind, **about)
    model = load_model(tmp_path)
    assert model.task == task
    assert not model.notes
    assert load_model(tmp_path, task="classification", num_labels=2).notes


def test_a_head_of_the_same_name_keeps_its_weights_and_that_is_said(tmp_path):
    saved(tmp_path, num_labels=3, problem_type="multi_label_classification")
    (note,) = load_model(tmp_path, task="classification").notes
    assert "one class" in note


def test_a_regression_of_several_numbers_is_refused(tmp_path):
    saved(tmp_path, num_labels=3, problem_type="regression")
    assert "regression of 3 numbers, which is not audited; --task classification" in refusal(tmp_path)


def test_objects_are_audited_for_what_their_head_is_for():
    tokenizer = tiny_tokenizer("bert")
    module = transformers.AutoModelForMaskedLM.from_config(CONFIGS["bert"](len(tokenizer), 2, 16))
    assert load_model(module, tokenizer=tokenizer).task == "masked-lm"
    with pytest.raises(GradleakError, match="BertForMaskedLM has no"):
        load_model(module, tokenizer=tokenizer, task="classification")
    module = tiny_module("bert", "classification", len(tokenizer), 2, 16, 0)
    module.config.problem_type = "multi_label_classification"
    assert load_model(module, tokenizer=tokenizer).task == "multi-label"


# --- the hub --------------------------------------------------------------------------------------------


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache of a hub that cannot be reached."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    reachable.cache_clear()
    yield tmp_path
    reachable.cache_clear()


def test_a_hub_id_is_read_and_checked_like_a_folder(offline):
    revision = "a" * 40
    repository = offline / "models--some--bert"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    place = saved(repository / "snapshots" / revision)
    assert load_model("some/bert").fingerprint == load_model(place).fingerprint
    edit_weights(place, lambda held: dict(list(held.items())[1:]))
    with pytest.raises(GradleakError, match="is not in its weight files"):
        load_model("some/bert")
    with pytest.raises(GradleakError, match="the hub cannot be reached"):
        load_model("some/other")


# --- adapters -------------------------------------------------------------------------------------------


@pytest.fixture
def adapted(tmp_path: Path) -> Path:
    peft = pytest.importorskip("peft")
    base = saved(tmp_path / "base", kind="MaskedLM")
    below = load_model(base, task="classification").module
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    peft.get_peft_model(below, settings).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_an_adapter_says_what_it_is_for_and_brings_its_head(adapted):
    model = load_model(adapted)
    assert model.task == "classification"
    assert not any("classifier" in note for note in model.notes)


def test_an_adapter_for_another_task_is_refused(adapted):
    file = adapted / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "task_type": "QUESTION_ANS"}))
    assert "QUESTION_ANS" in refusal(adapted)


def test_an_incomplete_adapter_is_refused(adapted):
    held = load_file(adapted / "adapter_model.safetensors")
    gone = next(name for name in held if "lora_B" in name)
    save_file({n: t for n, t in held.items() if n != gone}, adapted / "adapter_model.safetensors")
    assert "lora_B" in (line := refusal(adapted))
    assert "not in its weight files" in line
