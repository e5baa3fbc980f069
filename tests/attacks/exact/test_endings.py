"""The last tokens of a language model's sentences."""

from __future__ import annotations

from tiny import bare_update, wide_model

from gradleak import Client
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


def test_positions_at_which_nothing_is_predicted_do_not_hide_the_last_token() -> None:
    """Only the answer is predicted: the positions of a long question weigh nothing in the mean."""
    model = wide_model("llama", "causal-lm")
    text = "The loan was refused, and the flight leaves at noon on Friday. Who? Rosa paid"
    update = Client(model, client="fedsgd:loss=completion,marker=Who?").update([text])
    (row,) = model.tokenize([text])
    part = model.adapter.parts[-1]["ffn_out"]
    (found,) = endings(model, update.tensors[part.weight_name], [Prefix(0, tuple(row[:-1]))])
    assert found.token == row[-1]
    assert found.clear
