"""Selections mean what they say on every family, and an update then holds just that."""

from __future__ import annotations

import math

import pytest
import torch
from blobs import blobs, small_model
from tiny import TEXTS, tiny_model
from torch import nn

from gradleak import Client, GradleakError, ImageClient, ImageModel, TextModel, attack, load_model
from gradleak.models.selection import count_parameters, selected, share_of


def labels_of(model: TextModel) -> list[int] | None:
    return [0, 1, 1] if model.task == "classification" else None


def test_single_modules_are_one_weight_matrix(tiny: TextModel) -> None:
    """Every role of every layer: one tensor, of the module's own size, in no other role's selection."""
    taken: set[str] = set()
    for number, parts in enumerate(tiny.adapter.parts, start=1):
        for roles in tiny.layer_roles:
            (name,) = selected(f"layer:{number}.{','.join(roles)}", tiny)
            weight = parts[roles[0]].module.weight
            assert tiny.parameters()[name] is weight
            assert weight.dim() == 2
            assert count_parameters([name], tiny) == math.prod(weight.shape)
            assert name not in taken
            taken.add(name)


def test_whole_layers_have_all_of_them_and_nothing_else(tiny: TextModel) -> None:
    layers = [set(selected(f"layer:{number}", tiny)) for number in (1, 2)]
    assert not layers[0] & layers[1]
    assert layers[0] | layers[1] == set(selected("transformer", tiny)) == set(selected("layers:1-2", tiny))
    for layer, names in zip(tiny.adapter.layers, layers, strict=True):
        assert count_parameters(names, tiny) == sum(p.numel() for p in layer.parameters())
        assert any(tiny.parameters()[name].dim() == 1 for name in names)
    rest = set(selected("head+embeddings", tiny))
    assert not rest & set(selected("transformer", tiny))
    assert share_of(selected("all", tiny), tiny) == 100
    assert selected("regex:.", tiny) == selected("all", tiny) == list(tiny.parameters())


def test_a_tied_head_is_the_token_embedding() -> None:
    model = tiny_model("gpt2", "causal-lm")
    assert selected("head", model) == [model.adapter.parameter_of(model.adapter.token_embedding)]


def test_an_update_holds_what_was_selected_after_the_defences_acted(tiny: TextModel) -> None:
    labels = labels_of(tiny)
    whole = Client(tiny, defenses=["prune:ratio=0.5"]).update(TEXTS, labels)
    part = Client(tiny, defenses=["prune:ratio=0.5"], observe="layers:1-2.ffn_out+head").update(TEXTS, labels)
    assert set(part.tensors) == set(selected("layers:1-2.p+head", tiny))
    assert all(torch.equal(tensor, whole.tensors[name]) for name, tensor in part.tensors.items())


def test_shares_of_bert_base_are_those_of_the_paper() -> None:
    """Table 1 of the partial-gradients paper, counted on a model without weights."""
    from transformers import AutoModelForSequenceClassification, BertConfig

    small = tiny_model("bert", "classification")
    with torch.device("meta"):
        module = AutoModelForSequenceClassification.from_config(BertConfig(), attn_implementation="eager")
    model = TextModel(module, small.tokenizer, "classification", "bert-base")
    counts = {text: count_parameters(selected(text, model), model) for text in ("all", "transformer", "layer:6")}
    assert counts == {"all": 109_483_778, "transformer": 85_054_464, "layer:6": 7_087_872}
    for letter, count in {"q": 589_824, "k": 589_824, "v": 589_824, "o": 589_824, "f": 2_359_296}.items():
        assert count_parameters(selected(f"layer:6.{letter}", model), model) == count
    # The published code selects the attention output along with it; here it is one matrix.
    assert count_parameters(selected("layer:6.p", model), model) == 2_359_296
    assert round(share_of(selected("layer:6.q", model), model), 2) == 0.54


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a selection; write all"),
        ("layer", "is not a selection"),
        ("layer:0", "the first layer is 1"),
        ("layers:3-1", "is not a choice of layers"),
        ("layer:9", "has layers 1 to 2, not 9"),
        ("layer:1.qery", "did you mean 'query'"),
        ("layer:1.", "is no module of a layer"),
        (
            "layer:1.ffn_gate",
            "has no ffn_gate in layer 1; there are all, transformer, head, embeddings, layers",
        ),
        ("regex:nothing here", "selects nothing that .* trains; there are all"),
        ("regex:(", "is not a regular expression"),
        ("head+regex:a", "a regex stands alone"),
    ],
)
def test_bad_selections_are_refused(tiny_bert: TextModel, text: str, message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        Client(tiny_bert, observe=text)


def test_a_share_of_a_fused_matrix_is_refused_by_name() -> None:
    model = tiny_model("gpt2", "causal-lm")
    with pytest.raises(GradleakError, match=r"are one matrix .*select layer:2\.query,key,value"):
        selected("layer:2.q", model)
    assert selected("layer:2.q,k,v", model) == ["transformer.h.1.attn.c_attn.weight"]


def test_what_defences_took_away_cannot_be_observed(tiny_bert: TextModel) -> None:
    client = Client(tiny_bert, defenses=["layers:send=1"], observe="layer:2")
    with pytest.raises(GradleakError, match="nothing of 'layer:2' is left"):
        client.update(TEXTS, [0, 1, 1])


QUICK = {"steps": 2, "init_draws": 1, "prior": "none", "polish": 0}


@pytest.mark.parametrize("observe", ["transformer", "layer:2", "layer:1.q,k,v", "layers:1-2.p", "head", "embeddings"])
def test_lamp_matches_whatever_is_there(tiny: TextModel, observe: str) -> None:
    """All but a token embedding alone, which has no gradient for a dummy of embeddings; an error says so."""
    known = ("batch_size", "labels", "lengths")
    update = Client(tiny, known, observe=observe).update(TEXTS[:1], (labels_of(tiny) or [None])[:1])
    if set(update.tensors) == {tiny.adapter.parameter_of(tiny.adapter.token_embedding)}:
        with pytest.raises(GradleakError, match="nothing to match beside the token embedding"):
            attack(update, tiny, "lamp-cos", **QUICK)
        return
    (found,) = attack(update, tiny, "lamp-cos", **QUICK)
    assert found.sentences
    assert found.loss is not None


# --- image models -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lenet() -> ImageModel:
    return small_model()


def test_layers_of_an_image_model_are_its_modules_with_parameters(lenet: ImageModel) -> None:
    assert lenet.layer_count == 4
    assert lenet.layer_roles == [("weight",), ("bias",)]
    assert selected("layer:1", lenet) == ["body.0.weight", "body.0.bias"]
    assert selected("layer:2.weight+head", lenet) == ["body.2.weight", "head.weight", "head.bias"]
    assert selected("layers:2-3.bias", lenet) == ["body.2.bias", "body.4.bias"]
    assert selected("layers:1-4", lenet) == selected("all", lenet) == selected("regex:.", lenet)


def test_parameters_beside_modules_are_a_layer_of_their_own() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.head = nn.Linear(12, 2, bias=False)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(self.scale * images.flatten(1))

    model = load_model(Tokens(), shape=(3, 2, 2))
    assert selected("layer:1", model) == ["scale"]
    assert selected("layer:2", model) == ["head.weight"]
    assert model.layer_roles == []  # no role is in every layer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layer:5", "has layers 1 to 4, not 5"),
        ("transformer", r"has no transformer; there are all, head, layers 1 to 4 \(in each: weight, bias\)"),
        ("layer:1.query", "has no query in layer 1"),
        ("layer:1.weigth", "did you mean 'weight'"),
    ],
)
def test_bad_selections_of_an_image_model_are_refused(lenet: ImageModel, text: str, message: str) -> None:
    with pytest.raises(GradleakError, match=message):
        ImageClient(lenet, observe=text)


def test_an_update_of_images_holds_what_was_selected(lenet: ImageModel) -> None:
    whole = ImageClient(lenet, defenses=["sign"]).update(blobs(2))
    part = ImageClient(lenet, defenses=["sign"], observe="layer:3.weight+head").update(blobs(2))
    assert list(part.tensors) == ["body.4.weight", "head.weight", "head.bias"]
    assert all(torch.equal(tensor, whole.tensors[name]) for name, tensor in part.tensors.items())
    (found,) = attack(ImageClient(lenet, observe="layer:1+head").update(blobs(1)), lenet, "ig", steps=2)
    assert found.images
    sent = ImageClient(lenet, defenses=["layers:send=2-3", "frozen:parts=none,names=*.bias"]).update(blobs(1))
    assert list(sent.tensors) == ["body.2.weight", "body.4.weight"]
