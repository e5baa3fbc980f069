"""The texts of a packed row: the attacker knows that rows were packed, and sees the end tokens between the texts."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.models.text import TextModel
from gradleak.updates.client_rule import ClientRule


def texts_of(tokens: Sequence[int], model: TextModel, rule: ClientRule, first: bool) -> list[tuple[list[int], bool]]:
    """The texts in a row, each with whether it is a whole one; a sentence that is no packed row is one text.

    What rows are cut from ends at an end token and begins after one. A row's first text is whole if the rule keeps
    texts whole, if the tokenizer's own first token stands there, or if it is the first of all rows.
    """
    if rule.pack is None or not rule.attends_across:
        return [(list(tokens), True)]
    end, texts = model.tokenizer.eos_token_id, []
    begun = 0
    for place, token in enumerate(tokens):
        if token == end:
            texts.append(list(tokens[begun : place + 1]))
            begun = place + 1
    ended = len(texts)
    texts += [list(tokens[begun:])] if begun < len(tokens) else []
    found = []
    for number, text in enumerate(texts):
        opens = bool(model.prefix) and text[: len(model.prefix)] == model.prefix
        begins = number > 0 or rule.packing == "bfd" or opens or first
        found.append((text, begins and number < ended))
    return [(text, whole) for text, whole in found if model.content(text)]
