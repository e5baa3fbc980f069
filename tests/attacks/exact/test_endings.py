"""The last tokens of a language model's sentences."""

from __future__ import annotations

import torch
from tiny import bare_update, tiny_model, wide_model

from gradleak import Client, attack
from gradleak.attacks.exact.decoders import goes_round
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


def test_a_phrase_that_is_said_over_and_over_is_not_certified_where_attention_has_a_window() -> None:
    """Once it is beyond the window, nothing says how often: the states come back to where they were."""
    model = tiny_model("gemma3_text", "causal-lm", layers=4, width=64, seed=2)
    texts = ["My wife saw the Venice reservation reservation reservation", "Thank you, Jamal, the car loan"]
    (found,) = attack(bare_update(model, texts), model, "exact")
    own = [model.content(row) for row in model.encode(texts).sentences()]
    assert [sentence.tokens for sentence in found.sentences if sentence.certified] == [own[1]]
    assert all(sentence.confidence < 1 for sentence in found.sentences if not sentence.certified)


def test_going_round_is_told_by_states_behind_the_first_tokens_copies() -> None:
    distinct, back = torch.eye(4), torch.eye(4)[[0, 1, 2, 1]]
    assert not goes_round([5, 6, 7, 8], [distinct])
    assert goes_round([5, 6, 7, 6], [back])
    assert not goes_round([5, 6, 7, 6], [back, distinct])  # told apart at another place
    assert not goes_round([5, 5, 5, 6], [torch.eye(4)[[0, 0, 0, 1]]])
