"""Chat templates: what the library renders, where the assistant's turns are, and templates that mean harm."""

from __future__ import annotations

import copy
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_model

from gradleak import GradleakError, load_model
from gradleak.audits.modality import Truth
from gradleak.audits.spec import AuditSpec
from gradleak.audits.text import TEXT
from gradleak.core.render_chat import Request, Unfit, render
from gradleak.core.secret import Secret
from gradleak.data import chat
from gradleak.data.chat import BUILT_IN, rendered
from gradleak.data.records import Record, Turn
from gradleak.data.texts import Row
from gradleak.models.completion import completion_targets
from gradleak.models.tasks.base import NOT_PREDICTED
from gradleak.scoring.truth import truth_distance

TURNS = (Turn("user", "Who paid?"), Turn("assistant", "Rosa."), Turn("user", "Why?"), Turn("assistant", "The loan."))
CHAT = Row.of(Record(TURNS, "chat"))
MESSAGES = [turn.message() for turn in TURNS]
# As many templates are: the first token, turns in brackets, an end token after answers.
BRACKETS = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% else %}{% generation %}{{ ' ' ~ message.content ~ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)
UNMARKED = re.sub(r"\{% (end)?generation %\}", "", BRACKETS)
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}


def with_template(template: str, family: str = "llama") -> Any:
    model = tiny_model(family, "causal-lm")
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.chat_template = template
    return load_model(model.module, tokenizer=tokenizer, task="causal-lm")


def asked(template: str, *conversations: list[dict[str, str]]) -> Request:
    return Request(
        template=template, variables=VARIABLES, conversations=list(conversations), completions=True, seconds=20
    )


def test_texts_and_masks_are_the_librarys() -> None:
    """Its ids and its mask of the assistant's tokens, through our text, our places and our tokenizer's frame."""
    model = with_template(BRACKETS)
    (row,) = rendered([CHAT], model, None, completions=True)
    theirs = model.tokenizer.apply_chat_template(MESSAGES, return_dict=True, return_assistant_tokens_mask=True)
    (ids,) = model.tokenize([row.text])
    assert ids == theirs["input_ids"]
    (targets,) = completion_targets(model, [row.text], [ids], "unused", [row.completions])
    assert [int(target != NOT_PREDICTED) for target in targets] == theirs["assistant_masks"]


@pytest.mark.parametrize("template", [BRACKETS, *BUILT_IN.values()], ids=["brackets", *BUILT_IN])
def test_rendering_less_shows_the_places_that_the_marks_show(template: str) -> None:
    unmarked = re.sub(r"\{% (end)?generation %\}", "", template)
    ((text, marked),) = render(asked(template, MESSAGES))
    ((same, places),) = render(asked(unmarked, MESSAGES))
    assert text == same
    ours = [text[a:b].strip() for a, b in places]
    assert ours == [text[a:b].strip() for a, b in marked]
    assert [answer.removesuffix("</s>").removesuffix("<|im_end|>") for answer in ours] == ["Rosa.", "The loan."]


def test_a_template_that_rewrites_turns_shows_no_places() -> None:
    last_only = "{% for m in messages %}{{ m.content if loop.last else '...' }}{% endfor %}"
    with pytest.raises(Unfit, match="differently when others follow"):
        render(asked(last_only, MESSAGES))
    with pytest.raises(Unfit, match="begins with the assistant"):
        render(asked(UNMARKED, MESSAGES[1:]))


def test_the_date_is_always_the_same() -> None:
    ((text, _),) = render(asked("{% generation %}{{ strftime_now('%Y-%m-%d') }}{% endgeneration %}", MESSAGES))
    assert text == "2026-01-01"


def test_alpaca_with_and_without_an_input() -> None:
    with_input = [Turn("user", "Sum up.\nThe loan.", "Sum up.", "The loan.").message(), MESSAGES[1]]
    (whole, _), (short, _) = render(asked(BUILT_IN["alpaca"], with_input, MESSAGES[:2]))
    assert whole == "### Instruction:\nSum up.\n\n### Input:\nThe loan.\n\n### Response:\nRosa.</s>"
    assert short == "### Instruction:\nWho paid?\n\n### Response:\nRosa.</s>"


def test_gradients_are_those_of_the_librarys_mask(tmp_path: Path) -> None:
    """What an audit makes of chat data: the gradient of the library's own loss with the assistant's tokens only."""
    model = with_template(BRACKETS)
    data = tmp_path / "chats.jsonl"
    data.write_text(json.dumps({"messages": MESSAGES}))
    spec = AuditSpec(data=str(data), client="fedsgd:loss=completion", trials=1)
    (drawn,) = TEXT.draw(spec, TEXT.read(spec), model)
    truth = Truth.model_validate_json(TEXT.truth(drawn, model).model_dump_json())
    batch = TEXT.batch(truth, model)  # as it comes back from a truth file
    update = TEXT.update(TEXT.client(spec, model), batch, Secret.draw())
    distance = truth_distance(update, truth.examples, None, model, truth.completions)
    assert distance is not None
    assert distance < 1e-5  # the scorer makes the same gradient of the truth
    theirs = model.tokenizer.apply_chat_template(MESSAGES, return_dict=True, return_assistant_tokens_mask=True)
    ids = torch.tensor([theirs["input_ids"]])
    labels = torch.where(torch.tensor([theirs["assistant_masks"]]) == 1, ids, NOT_PREDICTED)
    model.module.zero_grad()
    model.module(input_ids=ids, labels=labels).loss.backward()
    for name, parameter in model.parameters().items():
        if parameter.grad is not None:
            torch.testing.assert_close(update.tensors[name], parameter.grad, rtol=1e-4, atol=1e-7)
    model.module.zero_grad(set_to_none=True)


def test_a_tokenizer_without_a_template_says_what_to_give() -> None:
    model = tiny_model("llama", "causal-lm")
    with pytest.raises(GradleakError, match="no chat template: give --chat-template alpaca, chatml, none or a file"):
        rendered([CHAT], model, "auto", completions=False)
    (row,) = rendered([CHAT], model, "none", completions=False)
    assert row.text == "Who paid?\nRosa.\nWhy?\nThe loan."
    with pytest.raises(GradleakError, match="no such file or name"):
        rendered([CHAT], model, "alpacca", completions=False)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 'a' * 10 ** 11 }}", "memory"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 1 s"),
    ],
    ids=["reaching out", "memory", "time"],
)
def test_a_hostile_template_ends_in_one_line(template: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "SECONDS", 1)
    monkeypatch.setattr(chat, "LOADING", 20)
    started = time.monotonic()
    with pytest.raises(GradleakError, match=message) as error:
        rendered([CHAT], with_template(template), None, completions=True)
    assert "\n" not in str(error.value)
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    "template", ["{% for %}", "{{ raise_exception('no\nway') }}", "{{ nobody.k }}", "{{ 1 / 0 }}"]
)
def test_a_broken_template_is_named(template: str) -> None:
    with pytest.raises(Unfit, match="conversation 1: ") as error:
        render(asked(template, MESSAGES))
    assert "\n" not in str(error.value)


def test_a_template_without_end_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(GradleakError, match="at most"):
        rendered([CHAT], with_template("x" * 200_000), None, completions=True)
    (tmp_path / "own.jinja").write_text("x" * 200_000)
    with pytest.raises(GradleakError, match="at most"):
        rendered([CHAT], with_template(BRACKETS), str(tmp_path / "own.jinja"), completions=True)


def test_the_template_is_part_of_what_a_result_depends_on() -> None:
    assert with_template(BRACKETS).identity() != with_template(UNMARKED).identity()
