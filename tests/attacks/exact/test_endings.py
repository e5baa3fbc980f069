"""The last tokens of a language model's sentences."""

from __future__ import annotations

from tiny import bare_update, wide_model

from gradleak.attacks.exact.endings import endings
from gradleak.attacks.exact.growing import Prefix


def test_last_tokens_come_from_the_output_gradient_of_the_last_layer() -> None:
    """Also if two sentences begin alike, and although no layer ever sees a last token."""
    model = wide_model("llama", "causal-lm")
    texts = ["The loan was refused.", "The loan was paid."]
    update = bare_update(model, texts)
    rows = model.encode(texts).sentences()
    part = model.adapter.parts[-1]["ffn_out"]
    found = endings(model, update.tensors[part.weight_name], [Prefix(0, tuple(row[:-1])) for row in rows])
    assert [ending.token for ending in found] == [row[-1] for row in rows]
    assert all(ending.clear for ending in found)
