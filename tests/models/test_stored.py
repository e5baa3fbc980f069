"""Frozen weights of large checkpoints stay as they were saved, and what is computed is the same to the last bit."""

import shutil

import pytest
import torch
from tiny import TEXTS, tiny_model, tiny_tokenizer

from gradleak import Client, GradleakError, attack, contains, load_model
from gradleak.core.memory import within
from gradleak.models.build import STORED
from gradleak.models.load import save_model
from gradleak.models.stored import weight_as_saved

pytest.importorskip("peft")
LORA = "r=4,targets=query+value,b=0.2"
HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Writes a tiny model in half precision, and makes every file count as large or none."""

    def write(family, task, kind, **sizes):
        module = tiny_model(family, task, **sizes).module.to(kind)
        module.save_pretrained(tmp_path / family)
        tiny_tokenizer(family).save_pretrained(tmp_path / family)
        return tmp_path / family

    def load(folder, large, **how):
        monkeypatch.setattr("gradleak.core.tensor_files.MAPPED_FROM", 1 if large else 1 << 60)
        return load_model(str(folder), **how)

    return write, load


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize(
    ("family", "task"),
    [("llama", "causal-lm"), ("qwen2", "causal-lm"), ("gpt2", "causal-lm"), ("gemma", "causal-lm"),
     ("bert", "classification"), ("modernbert", "classification")],
)  # fmt: skip
def test_halves_compute_what_fp32_computes(saved, family, task, kind):
    write, load = saved
    folder = write(family, task, kind)
    plain, stored = (load(folder, large, lora=LORA) for large in (False, True))
    frozen = [p for p in stored.module.parameters() if not p.requires_grad]
    assert {p.dtype for p in frozen} == {kind}
    assert {p.dtype for p in stored.parameters().values()} == {torch.float32}
    assert STORED in stored.notes
    assert STORED not in plain.notes
    assert stored.fingerprint == plain.fingerprint
    assert stored.identity() == plain.identity()
    assert stored.vocabulary_size == len(stored.token_embedding)
    assert stored.width == plain.token_embedding.shape[1]
    batch = stored.encode(TEXTS)
    assert torch.equal(stored.logits(ids=batch.ids, mask=batch.mask), plain.logits(ids=batch.ids, mask=batch.mask))
    classes = None if task == "causal-lm" else [0, 1, 1]
    first, second = (Client(model).update(TEXTS, classes).tensors for model in (stored, plain))
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_tied_matrix_stays_one(saved):
    write, load = saved
    model = load(write("gemma", "causal-lm", torch.bfloat16), True, lora=LORA)
    head = model.module.get_output_embeddings()
    assert weight_as_saved(head) is weight_as_saved(model.adapter.token_embedding)


def test_attacks_read_the_same(saved):
    write, load = saved
    folder = write("llama", "causal-lm", torch.bfloat16, width=64)
    models = [load(folder, large, lora=LORA) for large in (False, True)]
    update = Client(models[0]).update(TEXTS[:1])
    for name in ("bag", "exact"):
        first, second = (attack(update, model, name)[0] for model in models)
        assert first.bag == second.bag
        assert first.sentences == second.sentences
    public = [
        f"{text} {word}"
        for text in TEXTS
        for word in ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    ]
    rates = [
        [each.false_alarm_rate for each in contains(update, model, TEXTS, public=public, references=12).candidates]
        for model in models
    ]
    assert rates[0] == rates[1]


@pytest.mark.parametrize("large", [False, True])
def test_what_is_trained_is_fp32(saved, large):
    write, load = saved
    folder = write("llama", "causal-lm", torch.bfloat16)
    model = load(folder, large)
    assert {p.dtype for p in model.module.parameters()} == {torch.float32}
    assert STORED not in model.notes
    assert model.fingerprint == load(folder, not large).fingerprint


def test_adapters_of_a_folder_keep_their_base_as_saved(saved, tmp_path):
    write, load = saved
    base = write("llama", "causal-lm", torch.bfloat16)
    model = load(base, True, lora=LORA)
    save_model(model.module, model.tokenizer, tmp_path / "adapted")
    again = load(tmp_path / "adapted", True)
    assert {p.dtype for p in again.module.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert again.fingerprint == model.fingerprint


def test_copies_in_other_types_are_in_these(saved):
    write, load = saved
    model = load(write("llama", "causal-lm", torch.bfloat16), True, lora=LORA)
    batch = model.encode(TEXTS)
    exact = model.to_float64().logits(ids=batch.ids, mask=batch.mask)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.float(), model.logits(ids=batch.ids, mask=batch.mask), rtol=1e-4, atol=1e-4)
    assert model.copied().fingerprint == model.fingerprint


def test_weights_that_do_not_fit_are_refused_with_a_number_and_a_way_out(saved, monkeypatch):
    write, load = saved
    folder = write("llama", "causal-lm", torch.bfloat16)
    monkeypatch.setattr("gradleak.core.memory.LITTLE", 0)
    with within(1000):
        with pytest.raises(GradleakError, match=r"in fp32 needs 0\.\d\d GB of memory; 0.00 GB .*--lora"):
            load(folder, True)
        assert load(folder, True, lora=LORA).notes


@pytest.mark.parametrize("lora", [None, LORA])
def test_nan_in_a_mapped_checkpoint_is_refused(saved, lora):
    write, load = saved
    folder = write("llama", "causal-lm", torch.bfloat16)
    model = load(folder, False)
    with torch.no_grad():
        model.module.model.norm.weight[0] = float("nan")
    shutil.rmtree(folder)
    model.module.bfloat16().save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    with pytest.raises(GradleakError, match=r"'model.norm.weight' holds NaN"):
        load(folder, True, lora=lora)


def test_a_matrix_that_is_large_is_computed_in_pieces_to_the_same(saved, monkeypatch):
    write, load = saved
    folder = write("llama", "causal-lm", torch.bfloat16)
    plain, stored = (load(folder, large, lora=LORA) for large in (False, True))
    monkeypatch.setattr("gradleak.models.stored.PIECE", 5 * stored.width)  # the last piece is a shorter one
    batch = stored.encode(TEXTS)
    whole, pieces = (model.logits(ids=batch.ids, mask=batch.mask) for model in (plain, stored))
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-5)
    first, second = (Client(model).update(TEXTS).tensors for model in (stored, plain))
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=1e-3, atol=1e-6)
