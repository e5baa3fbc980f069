"""Bases in four bits: the numbers are those of bitsandbytes, wrong ones are refused, and LoRA trains on them."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny import TEXTS, tiny_model, tiny_tokenizer

from gradleak import Client, GradleakError, attack, load_model
from gradleak.models.build import PACKED
from gradleak.models.four_bit import four_bit, four_bit_names

MADE = load_file(Path(__file__).with_name("four_bit.safetensors"))  # by make_four_bit.py
BLOCK = 64
CODE = torch.linspace(-1, 1, 16)


@pytest.mark.parametrize("name", sorted(four_bit_names(MADE)))
def test_the_numbers_are_those_of_bitsandbytes(name):
    found = four_bit(name, four_bit_names(MADE)[name], MADE)
    expected = MADE[name.replace(".weight", ".expected")]
    assert found.dtype == expected.dtype
    assert torch.equal(found.unpacked(), expected.float())


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(sorted(four_bit_names(MADE))), st.data())
def test_what_does_not_fit_together_is_refused(name, data):
    tensors = dict(MADE)
    state = four_bit_names(MADE)[name]
    about = json.loads(bytes(MADE[state].tolist()))
    key = data.draw(st.sampled_from([*about, "", ".absmax", ".quant_map"]))
    if key in about:
        odd = [None, -1, 0, 10**30, "x", [1], [0, 595], [7, -85], [10**9, 10**9], 1e400, float("nan"), {}, True]
        about[key] = data.draw(st.sampled_from(odd))
        tensors[state] = torch.tensor(list(json.dumps(about).encode()), dtype=torch.uint8)
    elif data.draw(st.booleans()):
        tensors.pop(name + key)
    else:
        tensors[name + key] = tensors[name + key].view(-1)[:-1]
    try:
        found = four_bit(name, state, tensors)
    except GradleakError as error:
        assert "\n" not in str(error)
    else:  # the entry decides nothing, or says the same in another way
        assert found.unpacked().shape == found.shape


def packed(matrix):
    """The plain way: block by block, and two numbers a byte."""
    largest, places, values = [], [], []
    for block in matrix.flatten().split(BLOCK):
        largest.append(float(block.abs().max()))
        nearest = (CODE - block[:, None] / largest[-1]).abs().argmin(dim=1)
        places += nearest.tolist()
        values.append((CODE[nearest] * largest[-1]).bfloat16())
    pairs = [16 * high + low for high, low in zip(places[::2], places[1::2], strict=True)]
    about = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": "bfloat16", "shape": list(matrix.shape)}
    return {
        "": torch.tensor(pairs, dtype=torch.uint8)[:, None],
        ".absmax": torch.tensor(largest),
        ".quant_map": CODE.clone(),
        ".quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(about).encode()), dtype=torch.uint8),
    }, torch.cat(values).view(matrix.shape)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A tiny Llama in four bits, and one with the same numbers in bf16."""
    place = tmp_path_factory.mktemp("four-bit")
    module = tiny_model("llama", "causal-lm", width=32).module.bfloat16()
    weights = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    inside = [name for name in weights if "proj" in name]
    both = {name: packed(weights[name].float()) for name in inside}
    for kind in ("plain", "four"):
        module.save_pretrained(place / kind)
        tiny_tokenizer("llama").save_pretrained(place / kind)
    plain = {name: both[name][1] if name in both else tensor for name, tensor in weights.items()}
    four = {name: tensor for name, tensor in weights.items() if name not in both}
    four |= {name + end: tensor for name, (parts, _) in both.items() for end, tensor in parts.items()}
    save_file(plain, place / "plain" / "model.safetensors", {"format": "pt"})
    save_file(four, place / "four" / "model.safetensors", {"format": "pt"})
    config = json.loads((place / "four" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (place / "four" / "config.json").write_text(json.dumps(config))
    return place / "plain", place / "four"


LORA = "r=4,targets=query+value,b=0.2"


def test_lora_trains_on_them_as_on_the_numbers_they_stand_for(folders):
    pytest.importorskip("peft")
    plain, four = (load_model(str(folder), lora=LORA) for folder in folders)
    assert PACKED in four.notes
    assert sum(p.dtype == torch.uint8 for p in four.module.parameters()) == 14
    assert four.fingerprint == plain.fingerprint
    batch = four.encode(TEXTS)
    assert torch.equal(four.logits(ids=batch.ids, mask=batch.mask), plain.logits(ids=batch.ids, mask=batch.mask))
    assert four.to_float64().logits(ids=batch.ids, mask=batch.mask).dtype == torch.float64
    first, second = (Client(model, client="adamw:lr=1e-3,steps=2").update(TEXTS).tensors for model in (four, plain))
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    update = Client(four).update(TEXTS[:1])
    assert attack(update, four, "bag")[0].bag == attack(update, plain, "bag")[0].bag


def test_their_weights_themselves_are_not_trained(folders):
    with pytest.raises(GradleakError, match=r"quantised to 4 bits, which cannot be trained; .*--lora"):
        load_model(str(folders[1]))


@pytest.mark.parametrize(
    "settings", [{"quant_method": "gptq", "bits": 4}, {"load_in_8bit": True}, {"load_in_4bit": 1}]
)
def test_other_quantisations_are_refused(folders, tmp_path, settings):
    config = json.loads((folders[1] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    with pytest.raises(GradleakError, match="are quantised"):
        load_model(str(tmp_path), lora=LORA)
