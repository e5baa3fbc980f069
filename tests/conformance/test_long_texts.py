"""Long texts, packed rows and cut ones, by every attack: a result or one line that says why not, in its time."""

from __future__ import annotations

import time

import pytest
from tiny import POSITIONS, TEXTS, WINDOW, tiny_model

from gradleak import Client, GradleakError, TextModel, attack, score
from gradleak.attacks import ATTACKS
from gradleak.core.budget import Budget
from gradleak.data.texts import Row, read_data
from gradleak.data.windows import cut_rows, windows

SECONDS = 0.1
# Layers that see only what is near, positions that are learned, and encoders.
FAMILIES = [
    ("mistral", "causal-lm"),
    ("gpt2", "causal-lm"),
    ("bert", "classification"),
    ("modernbert", "classification"),
]
RULES = {
    "one long text": "fedsgd",
    "whole texts in rows": "fedsgd:pack=60,packing=bfd",
    "rows that see across": "fedsgd:pack=60,packing=wrapped",
    "steps over rows": "fedavg:pack=32,packing=wrapped,lr=0.001",
}
LONG = " ".join(row.text for row in read_data()[:12])


def long_text(model: TextModel, tokens: int) -> str:
    """A text of exactly so many tokens."""
    return next(text for text, _ in windows(LONG, model, tokens))


@pytest.mark.parametrize("name", ATTACKS.names())
@pytest.mark.parametrize("family", FAMILIES, ids=[family for family, _ in FAMILIES])
def test_every_attack_ends_in_an_answer_or_a_reason(family: tuple[str, str], name: str) -> None:
    model = tiny_model(*family)
    language = model.task == "causal-lm"
    for what, rule in RULES.items() if family[0] == "mistral" else [*RULES.items()][::2]:
        if "pack" in rule and not language:
            continue
        texts = TEXTS if "pack" in rule else [long_text(model, POSITIONS - 4)]
        update = Client(model, client=rule).update(texts, None if language else [1])
        started = time.monotonic()
        try:
            (found,) = attack(update, model, name, budget=Budget(seconds=SECONDS))
        except GradleakError as error:
            assert "\n" not in str(error), what
        else:
            assert found.sentences or found.bag or found.reasons or found.status == "budget-exhausted", what
        assert time.monotonic() - started < SECONDS + 20, what


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gpt_neo", "llama", "gpt2"])
def test_exact_recovers_a_text_far_longer_than_a_window(family: str) -> None:
    model = tiny_model(family, "causal-lm", layers=3, width=128)
    text = long_text(model, POSITIONS - 4)
    assert len(model.tokenize([text])[0]) == POSITIONS - 4 > 5 * WINDOW
    (found,) = attack(Client(model).update([text]), model, "exact")
    assert score(found, [text], model).metrics["exact_match"] == 100
    assert found.sentences[0].certified


@pytest.mark.parametrize(("family", "task"), [("llama", "causal-lm"), ("bert", "classification")])
def test_a_text_longer_than_the_model_takes_is_refused_or_cut(family: str, task: str) -> None:
    model = tiny_model(family, task)
    labels = [1] if task == "classification" else None
    with pytest.raises(GradleakError, match="takes at most"):
        Client(model).update([LONG], labels)
    pieces = cut_rows([Row(LONG, 1)], model, POSITIONS)
    assert len(pieces) > 1
    assert all(len(row) == POSITIONS for row in model.tokenize([piece.text for piece in pieces]))
    Client(model).update([pieces[0].text], labels)


def test_more_tokens_than_dimensions_is_said() -> None:
    """What exact needs is a dimension for every token and some to spare; beyond it says so at once."""
    model = tiny_model("bert", "classification", layers=3, width=32)
    (found,) = attack(Client(model).update([long_text(model, POSITIONS - 4)], [1]), model, "exact")
    assert not found.sentences
    assert any(reason.kind == "no-gap" for reason in found.reasons)
