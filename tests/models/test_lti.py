"""Targets that are drawn from a seed: the Learning To Invert paper's language model."""

import pytest
import torch

from gradleak import Client, GradleakError, attack, load_model
from gradleak.models.lti import bare_tokenizer

SMALL = "lti:width=16,layers=1,tokens=8"


@pytest.fixture(scope="module")
def model():
    return load_model(SMALL)


def test_it_has_the_published_shape():
    published = load_model("lti")
    sizes = {name: p.numel() for name, p in published.parameters().items()}
    assert 1.0e6 < sum(sizes.values()) < 1.1e6
    assert (len(published.adapter.layers), published.token_embedding.shape[1], published.max_length) == (3, 96, 16)


def test_the_token_embedding_is_frozen_and_no_update_holds_it(model):
    (tokens,) = model.encode(["the loan was refused"]).sentences()
    assert model.decode(tokens) == "the loan was refused"
    assert (model.prefix, model.suffix) == ([], [])
    update = Client(model).update(["the loan was refused"])
    assert "transformer.wte.weight" not in update.tensors
    assert "transformer.wpe.weight" in update.tensors


def test_the_seed_decides_the_weights(model):
    assert load_model(SMALL).fingerprint == model.fingerprint
    assert load_model(f"{SMALL},seed=1").fingerprint != model.fingerprint


def test_matching_attacks_work_on_it(model):
    (found,) = attack(Client(model).update(["the loan was refused"]), model, "tag", steps=3, adapt=True)
    assert len(found.sentences[0].tokens) == 4


def test_a_folder_with_the_two_files_of_gpt2_is_a_tokenizer(tmp_path):
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2, "Ġ": 3, "<|endoftext|>": 4}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    assert bare_tokenizer(str(tmp_path))("ab a")["input_ids"] == [2, 3, 0]
    model = load_model(f"lti:tokenizer={tmp_path},width=16,layers=1")
    assert model.token_embedding.shape == (5, 16)
    assert torch.isfinite(
        model.loss(torch.tensor([[2, 3, 0]]), ids=torch.tensor([[2, 3, 0]]), mask=torch.ones(1, 3) > 0)
    )


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        ("lti:tokenizer=nowhere", None, "nowhere holds no tokenizer"),
        ("lti:sead=1", None, "did you mean 'seed'"),
        ("lti:seed", None, "key=value"),
        ("lti", "classification", "audited on causal-lm"),
        ("ltii", None, "did you mean 'lti'"),
    ],
)
def test_bad_names_are_one_line(name, task, message):
    with pytest.raises(GradleakError, match=message):
        load_model(name, task=task)
