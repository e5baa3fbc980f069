"""Instructions and conversations as the texts a model is trained on: rendered by a chat template."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gradleak.core.errors import GradleakError
from gradleak.core.privacy import private
from gradleak.core.reading import read_text
from gradleak.core.registry import suggest
from gradleak.core.render_chat import Request
from gradleak.data.records import Completions
from gradleak.data.texts import Row
from gradleak.models.text import TextModel

AUTO, NONE = "auto", "none"
# Longer than any template that is in use by far.
MOST_CHARACTERS = 1 << 17
# Seconds of the processor that templates may take: so many, and one more for so many rows. By the clock it is twice
# as long, and what the library takes to load.
SECONDS, ROWS_A_SECOND = 20, 500
LOADING = 30
# Formats that projects train with whose tokenizers have no template of their own. Alpaca's has its headings; what a
# project says before them is a system turn, or in a template of its own.
BUILT_IN = {
    "alpaca": (
        "{%- for message in messages -%}"
        "{%- if message.role == 'assistant' -%}"
        "{{ '### Response:\n' }}{% generation %}{{ message.content ~ (eos_token or '') }}{% endgeneration %}"
        "{{- '' if loop.last else '\n\n' -}}"
        "{%- elif message.role == 'system' -%}{{ message.content ~ '\n\n' }}"
        "{%- else -%}"
        "{{ '### Instruction:\n' ~ (message.instruction or message.content) ~ '\n\n' }}"
        "{{- '### Input:\n' ~ message.input ~ '\n\n' if message.input else '' }}"
        "{%- endif -%}"
        "{%- endfor -%}"
        "{{- '### Response:\n' if add_generation_prompt else '' -}}"
    ),
    "chatml": (
        "{%- for message in messages -%}"
        "{{ '<|im_start|>' ~ message.role ~ '\n' }}"
        "{%- if message.role == 'assistant' -%}"
        "{% generation %}{{ message.content ~ '<|im_end|>\n' }}{% endgeneration %}"
        "{%- else -%}{{ message.content ~ '<|im_end|>\n' }}{%- endif -%}"
        "{%- endfor -%}"
        "{{- '<|im_start|>assistant\n' if add_generation_prompt else '' -}}"
    ),
}


def rendered(rows: Sequence[Row], model: TextModel, template: str | None, completions: bool) -> list[Row]:
    """The rows with the texts that their records make by the template; rows without a record stay as they are.

    `template` is auto (or None), none, the name of a built-in one or a file. `completions` asks for the places of the
    answers too, which not every template shows.
    """
    sources: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        if row.record is not None:
            name = row.record.usual if template is None or template == AUTO else template
            sources.setdefault(name, []).append(number)
    whole = [row if completions else replace(row, completions=None) for row in rows]
    for name, numbers in sources.items():
        if name != NONE:
            made = _render([rows[number] for number in numbers], model, name, completions)
            for number, row in zip(numbers, made, strict=True):
                whole[number] = row
    return whole


def _render(rows: Sequence[Row], model: TextModel, name: str, completions: bool) -> list[Row]:
    source = own_template(model) if name == "chat" else _template(name)
    named = {key: str(value) for key, value in model.tokenizer.special_tokens_map.items() if isinstance(value, str)}
    request = Request(
        template=source,
        variables=named,
        conversations=[[turn.message() for turn in row.record.turns] for row in rows if row.record is not None],
        completions=completions,
        seconds=SECONDS + len(rows) // ROWS_A_SECOND,
    )
    what = f"the chat template of {model.name}" if name == "chat" else f"the chat template {name}"
    # The tokenizer puts its first tokens before every text, so a template that writes them too would double them.
    first = model.tokenizer.decode(model.prefix) if model.prefix else ""
    found = []
    for row, (text, places) in zip(rows, _ask(request, what), strict=True):
        cut = len(first) if first and text.startswith(first) else 0
        own: Completions = tuple((max(0, a - cut), b - cut) for a, b in places if b > max(a, cut))
        if not text[cut:].strip():
            raise GradleakError(f"{what} makes an empty text of a conversation")
        found.append(replace(row, text=text[cut:], completions=own if completions else None))
    return found


def own_template(model: TextModel) -> str:
    """The template that came with a model's tokenizer."""
    held = getattr(model.tokenizer, "chat_template", None)
    if isinstance(held, dict):
        held = held.get("default")
    if not isinstance(held, str) or not held.strip():
        raise GradleakError(
            f"the tokenizer of {model.name} has no chat template: give --chat-template {', '.join(BUILT_IN)}, "
            "none or a file"
        )
    return _short(held, f"the chat template of {model.name}")


def _template(name: str) -> str:
    if name in BUILT_IN:
        return BUILT_IN[name]
    if not Path(name).is_file():
        raise GradleakError(f"chat template {name!r}: no such file or name; {suggest(name, [AUTO, NONE, *BUILT_IN])}")
    return _short(read_text(Path(name), 4 * MOST_CHARACTERS), f"the chat template {name}")


def _short(template: str, what: str) -> str:
    if len(template) > MOST_CHARACTERS:
        raise GradleakError(f"{what} has {len(template):,} characters; at most {MOST_CHARACTERS:,} are read")
    return template


def _ask(request: Request, what: str) -> list[tuple[str, list[tuple[int, int]]]]:
    """What the process that renders answers."""
    command = [sys.executable, "-m", "gradleak.core.render_chat"]
    asked, seconds = json.dumps(request).encode(), request["seconds"]
    ended = f"it took more than {seconds} s or its memory"
    try:
        done = subprocess.run(command, input=asked, capture_output=True, timeout=2 * seconds + LOADING, check=False)
    except subprocess.TimeoutExpired as error:
        raise GradleakError(f"{what} cannot be used: {ended}") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        said = private(lines[-1]) if done.returncode > 0 and lines else ended
        raise GradleakError(f"{what} cannot be used: {said}")
    return [(text, [(a, b) for a, b in places]) for text, places in json.loads(done.stdout)]
