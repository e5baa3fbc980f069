"""Fresh adapters: as peft makes them, the same on every machine, and nothing else is trained."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TEXTS, tiny_model

from gradleak import Client, GradleakError, TextModel, load_model, load_update
from gradleak.core.client_presets import PRESETS
from gradleak.models.load import save_model
from gradleak.models.lora_text import LoraSettings
from gradleak.models.selection import selected

peft = pytest.importorskip("peft")


def adapted(settings: str, family: str = "llama", task: str = "causal-lm") -> TextModel:
    below = tiny_model(family, task)
    return load_model(below.module, tokenizer=below.tokenizer, task=task, lora=settings)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("family", "task"), [("llama", "causal-lm"), ("gpt2", "causal-lm"), ("bert", "classification")]
)
@pytest.mark.parametrize("targets", ["query+value", "ffn_in", "all"])
def test_only_the_factors_of_the_named_parts_are_trained(family: str, task: str, targets: str) -> None:
    model = adapted(f"r=4,targets={targets}", family, task)
    names = list(model.parameters())
    assert names
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    roles = model.adapter.family.roles if targets == "all" else targets.split("+")
    for layer in model.adapter.parts:
        for role, part in layer.items():
            shared = [other for other in roles if layer[other].name == part.name]
            assert any(name.startswith(f"{part.name}.lora_A") for name in names) == bool(shared), role
    labels = [0, 1, 1] if task == "classification" else None
    assert set(Client(model, client="adamw").update(TEXTS, labels).tensors) == set(names)


def test_the_same_text_is_the_same_model_and_another_seed_is_not() -> None:
    first, again, other = (adapted(f"r=4,b=0.1,seed={seed}") for seed in (3, 3, 4))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.identity() == again.identity()
    for name, parameter in first.parameters().items():
        assert not torch.equal(parameter, other.parameters()[name])
    # Pinned, so that a version that draws differently is noticed.
    name = next(name for name in first.parameters() if "layers.0.self_attn.q_proj.lora_A" in name)
    expected = (2 * torch.rand(4, 16, generator=torch.Generator().manual_seed(3)) - 1) / 4
    assert sorted(first.parameters())[0].endswith("q_proj.lora_A.default.weight")
    torch.testing.assert_close(first.parameters()[name].detach(), expected)


def test_what_the_weights_do_not_say_is_part_of_the_identity() -> None:
    plain = adapted("r=4,alpha=8")
    for other in ("r=4,alpha=16", "r=4,alpha=8,rslora=true", "r=4,alpha=8,dropout=0.1"):
        model = adapted(other)
        assert model.fingerprint == plain.fingerprint
        assert model.identity() != plain.identity()


def test_the_first_round_changes_nothing_and_later_ones_do() -> None:
    below = tiny_model("llama", "causal-lm")
    batch = below.encode(TEXTS)
    plain = below.batch_loss(batch, batch.ids)
    torch.testing.assert_close(adapted("r=4").batch_loss(batch, batch.ids), plain)
    assert not torch.isclose(adapted("r=4,b=0.3").batch_loss(batch, batch.ids), plain)
    update = Client(adapted("r=4")).update(TEXTS)
    assert all(bool(tensor.any()) == (".lora_B." in name) for name, tensor in update.tensors.items())


def test_factors_are_drawn_as_wide_as_peft_draws_them() -> None:
    below = tiny_model("llama", "causal-lm", width=64)
    torch.manual_seed(0)
    theirs = peft.get_peft_model(below.copied().module, peft.LoraConfig(r=32, target_modules=["q_proj"]))
    ours = load_model(below.module, tokenizer=below.tokenizer, lora="r=32,targets=query")
    for (_, p), (_, q) in zip(
        *(((n, p) for n, p in m.named_parameters() if "lora_A" in n) for m in (theirs, ours.module)), strict=True
    ):
        assert float(p.abs().max()) == pytest.approx(float(q.abs().max()), rel=0.02)
        assert float(p.std()) == pytest.approx(float(q.std()), rel=0.05)


def test_the_users_own_model_stays_as_it_is() -> None:
    below = tiny_model("llama", "causal-lm")
    names = [name for name, p in below.module.named_parameters() if p.requires_grad]
    load_model(below.module, tokenizer=below.tokenizer, lora="r=4")
    assert [name for name, p in below.module.named_parameters() if p.requires_grad] == names


def test_notes_say_so() -> None:
    assert "Fresh LoRA adapters (r=4,alpha=8,targets=query+value) are on the model" in adapted("r=4").notes[-1]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("rule", ["fedsgd", "adamw:clip=1", "fedavg:precision=bf16,lr=0.1"])
def test_dora_trains_lengths_too(family: str, rule: str, tmp_path: Path) -> None:
    model = adapted("r=4,dora=true,targets=query+ffn_in,b=0.1", family)
    lengths = [name for name in model.parameters() if "lora_magnitude_vector" in name]
    assert len(lengths) == 4
    update = Client(model, client=rule).update(TEXTS)
    assert all(bool(update.tensors[name].any()) for name in lengths)
    again = load_update(update.save(tmp_path / "update"), model)
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in update.tensors.items())
    assert set(selected("layer:1", model)) >= set(lengths[:2])


def test_differential_privacy_is_for_lora_and_not_for_dora() -> None:
    pytest.importorskip("opacus")
    defense = "dpsgd:noise=0.1,clip=1"
    assert Client(adapted("r=4"), client="adamw", defenses=[defense]).update(TEXTS).tensors
    with pytest.raises(GradleakError, match="Opacus cannot separate what single sentences add to DoRA's adapters"):
        Client(adapted("r=4,dora=true"), defenses=[defense]).update(TEXTS)


def test_a_folder_of_dora_adapters_is_a_model(tmp_path: Path) -> None:
    below = tiny_model("llama", "causal-lm")
    below.module.save_pretrained(tmp_path / "base")
    below.tokenizer.save_pretrained(tmp_path / "base")
    base = load_model(str(tmp_path / "base"))
    wrapped = peft.get_peft_model(base.module, peft.LoraConfig(r=4, use_dora=True, target_modules=["q_proj"]))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    wrapped.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    wrapped.save_pretrained(tmp_path / "adapters")
    model = load_model(str(tmp_path / "adapters"))
    trained = {name: p for name, p in wrapped.get_base_model().named_parameters() if p.requires_grad}
    assert any("lora_magnitude_vector" in name for name in trained)
    for name, parameter in model.parameters().items():
        torch.testing.assert_close(parameter, trained[name])
    Client(model).update(TEXTS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("r=0", "lora: r: "),
        ("rank=4", "lora: unknown key 'rank'"),
        ("r=4,targets=qery", r"has no part 'qery'; did you mean 'query'"),
        ("r=4,dropout=1", "lora: dropout"),
        ("nvflare-ner", "neither of the form"),
        ("flowertune:q=1", "lora 'flowertune': unknown key 'q'"),
        ("", "neither of the form"),
    ],
)
def test_bad_adapters_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(GradleakError, match=message) as error:
        adapted(text)
    assert "\n" not in str(error.value)


def test_adapters_go_on_text_models_without_any(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match="reads images"):
        load_model("lenet", lora="r=4")
    model = adapted("r=4")
    with pytest.raises(GradleakError, match="has adapters already"):
        load_model(model.module, tokenizer=model.tokenizer, lora="r=4")


@given(
    r=st.integers(1, 512),
    alpha=st.none() | st.floats(0.125, 1024, width=16),
    targets=st.lists(st.sampled_from(["query", "value", "all"]), min_size=1, max_size=3),
    dropout=st.floats(0, 0.99),
    b=st.floats(0, 1),
    flags=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 1000),
)
def test_a_text_of_adapters_is_the_adapters(r, alpha, targets, dropout, b, flags, seed) -> None:  # type: ignore[no-untyped-def]
    settings = LoraSettings(
        r=r, alpha=alpha, targets=tuple(targets), dropout=dropout, b=b, rslora=flags[0], dora=flags[1], seed=seed
    )
    again = LoraSettings.parse(str(settings))
    assert str(again) == str(settings)
    assert math.isclose(again.scale, settings.scale)
    assert (again.targets, again.dropout, again.b, again.seed) == (settings.targets, dropout, b, seed)


def test_every_preset_with_adapters_has_settings_of_them() -> None:
    for name, preset in PRESETS.items():
        if preset.lora:
            assert LoraSettings.parse(name).r == preset.lora["r"]


def test_a_classifier_whose_head_is_not_trained_is_saved_as_it_is(tmp_path: Path) -> None:
    """The library's name of this task would make the head a part of the adapters, and it is not in their file."""
    base = tiny_model("bert", "classification")
    save_model(base.module, base.tokenizer, tmp_path / "base")
    model = load_model(tmp_path / "base", lora="r=2,b=0.02")
    first = save_model(model.module, model.tokenizer, tmp_path / "first")
    again = load_model(first)
    second = save_model(again.module, again.tokenizer, tmp_path / "second")
    for each in (again, load_model(second)):
        assert each.task == "classification"
        assert each.parameters().keys() == model.parameters().keys()
        assert all(torch.equal(weight, model.parameters()[name]) for name, weight in each.parameters().items())
