"""Encoder-decoders: their parts, their two sides, their loss, and how they are loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny import PAIR_CASES, TARGETS, TEXTS, tiny_model, tiny_tokenizer

from gradleak import Client, GradleakError, TextModel, load_model
from gradleak.attacks.spans.probe import Probe
from gradleak.models.families import ROLES
from gradleak.models.masks import Sees
from gradleak.models.sides import Source, Target
from gradleak.updates.client_rule import ClientRule

every_pair = pytest.mark.parametrize("family", PAIR_CASES)


def examples_of(model: TextModel) -> Any:
    return model.goal.examples(model, TEXTS, model.goal.labels(model, TEXTS, TARGETS), ClientRule())


@every_pair
def test_loss_and_gradients_are_the_librarys(family: str) -> None:
    model = tiny_model(family, "seq2seq")
    batch, targets = examples_of(model)
    names = list(model.parameters())
    theirs = model.module(input_ids=batch.ids, attention_mask=batch.mask.long(), labels=targets).loss
    expected = torch.autograd.grad(theirs, [model.parameters()[name] for name in names])
    torch.testing.assert_close(model.batch_loss(batch, targets), theirs, rtol=1e-5, atol=1e-6)
    sent = Client(model).update(TEXTS, TARGETS).tensors
    assert set(sent) == set(names)
    for name, own in zip(names, expected, strict=True):
        torch.testing.assert_close(sent[name], own, rtol=1e-4, atol=1e-6)


@every_pair
def test_losses_of_examples_are_those_of_batches_of_one(family: str) -> None:
    model = tiny_model(family, "seq2seq")
    batch, targets = examples_of(model)
    alone = [model.batch_loss(batch.part(slice(i, i + 1)), targets[i : i + 1]) for i in range(len(batch))]
    torch.testing.assert_close(model.example_losses(batch, targets), torch.stack(alone), rtol=1e-4, atol=1e-5)
    counts = [model.predictions(batch.part(slice(i, i + 1)), targets[i : i + 1]) for i in range(len(batch))]
    assert counts == [len(row) for row in model.encode(TARGETS).sentences()]


@every_pair
def test_layers_of_both_sides_have_their_parts(family: str) -> None:
    model = tiny_model(family, "seq2seq")
    encoder, decoder = model.adapter.parts[:2], model.adapter.parts[2:]
    assert [len(side.layers) for side in model.adapter.sides] == [2, 1]
    assert len(decoder) == 2
    for parts in (*encoder, *decoder):
        assert set(ROLES) <= set(parts)
        assert ("cross_query" in parts) == (parts in decoder)
        assert len({part.name for part in parts.values()}) == len(parts)
        assert all(part.weight_name in model.parameters() for part in parts.values())


@every_pair
def test_sides_see_what_the_whole_model_sees(family: str) -> None:
    """The first layers of either side, run alone, against the library's own pass over a pair."""
    model = tiny_model(family, "seq2seq")
    batch, targets = examples_of(model)
    source, target = Source(model), Target(model)
    watched = [
        source.adapter.parts[1]["value"],
        target.adapter.parts[0]["value"],
        target.adapter.parts[0]["cross_query"],
    ]
    seen: dict[int, torch.Tensor] = {}

    def keep(number: int) -> Any:
        def hook(module: Any, inputs: Any) -> None:
            seen.setdefault(number, inputs[0].detach())

        return hook

    hooks = [part.module.register_forward_pre_hook(keep(i)) for i, part in enumerate(watched)]
    model.batch_loss(batch, targets)
    for hook in hooks:
        hook.remove()
    read = model.module.prepare_decoder_input_ids_from_labels(targets)
    assert read[0, : len(target.prefix)].tolist() == target.prefix
    with torch.no_grad():
        (alone,) = Probe(source, watched[:1])(input_ids=batch.ids, mask=batch.mask.long())
        first, mixed = Probe(target, watched[1:])(input_ids=read, mask=torch.ones_like(read))
    torch.testing.assert_close(alone[batch.mask], seen[0][batch.mask], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first, seen[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mixed, seen[2], rtol=1e-4, atol=1e-5)


@every_pair
def test_tokens_side_by_side_see_their_own_prefix(family: str) -> None:
    """Several candidates after one prefix, at the same position, are what each is there alone."""
    target = Target(tiny_model(family, "seq2seq"))
    part, prefix, candidates = target.adapter.parts[0]["cross_query"], [*target.prefix, 20, 21, 22], [30, 31, 32]
    ids = torch.tensor([[*prefix, *candidates]])
    length = len(prefix)
    places = torch.arange(ids.shape[1]).clamp_max(length)
    sees = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    sees[length:, length:] = torch.eye(len(candidates), dtype=torch.bool)
    with torch.no_grad():
        (beside,) = Probe(target, [part])(input_ids=ids, mask=Sees(sees, places), position_ids=places[None])
        for number, token in enumerate(candidates):
            alone = torch.tensor([[*prefix, token]])
            (own,) = Probe(target, [part])(input_ids=alone, mask=torch.ones_like(alone))
            torch.testing.assert_close(beside[0, length + number], own[0, -1], rtol=1e-4, atol=1e-5)


@every_pair
def test_a_folder_loads_like_the_object_and_without_its_head(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, "seq2seq")
    model.module.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert (again.task, again.fingerprint) == ("seq2seq", model.fingerprint)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["architectures"] = None
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert load_model(tmp_path).task == "seq2seq"


def test_a_model_without_a_head_gets_one(tmp_path: Path) -> None:
    """Where the head is a copy of the embeddings, there is nothing to draw."""
    bart = tiny_model("bart", "seq2seq")
    bart.module.base_model.save_pretrained(tmp_path)
    bart.tokenizer.save_pretrained(tmp_path)
    assert load_model(tmp_path).notes == ()
    t5 = tiny_model("t5", "seq2seq")
    transformers.T5Model(t5.module.config).save_pretrained(tmp_path)
    assert load_model(tmp_path).notes == ()


def test_other_tasks_and_missing_starts_are_refused(tmp_path: Path) -> None:
    model = tiny_model("t5", "seq2seq")
    with pytest.raises(GradleakError, match="supported for seq2seq, not classification"):
        load_model(model.module, tokenizer=model.tokenizer, task="classification")
    model.module.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    for start in (None, 10**9, "x"):
        (tmp_path / "config.json").write_text(json.dumps({**settings, "decoder_start_token_id": start}))
        with pytest.raises(GradleakError) as caught:
            load_model(tmp_path)
        assert "\n" not in str(caught.value)


def test_targets_are_needed_and_must_be_readable() -> None:
    model = tiny_model("t5", "seq2seq")
    with pytest.raises(GradleakError, match="one label per text"):
        Client(model).update(TEXTS)
    with pytest.raises(GradleakError, match="one label per text"):
        Client(model).update(TEXTS, TARGETS[:1])
    with pytest.raises(GradleakError, match="empty for"):
        Client(model).update(TEXTS[:1], [""])
    with pytest.raises(GradleakError, match="list of its tokens"):
        Client(model).update(TEXTS[:1], [[10**6]])
    update = Client(model, ("batch_size", "labels", "lengths")).update(TEXTS[:1], TARGETS[:1])
    assert update.known.labels is None, "a target is as private as a source"


def test_the_tokenizer_of_a_pair_frames_both_texts() -> None:
    model = tiny_model("bart", "seq2seq")
    assert Target(model).prefix == [3, *model.prefix]
    assert Target(model).suffix == []
    assert tiny_tokenizer("bart")("a")["input_ids"][-1] == model.suffix[-1]
