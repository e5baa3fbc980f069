"""Renders conversations by a chat template in a process of its own, under limits.

A template is a program in Jinja that came with a model. The library's sandbox keeps it from reaching out; the limits
keep it from taking all memory or time. `gradleak.data.chat` starts it: `python -m gradleak.core.render_chat` with a
`Request` in JSON as its input; the output is one JSON list of texts with the places of their completions.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from typing import Any, TypedDict

from gradleak.core.output import say
from gradleak.core.process_limits import limit

# What rendering may take beyond the libraries.
MOST_MEMORY = 1 << 30
# The template's own marks around what the assistant says.
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
# What templates are told of the date: the same command must give the same text tomorrow.
TODAY = datetime.datetime(2026, 1, 1)


class Request(TypedDict):
    """What is to be rendered, within so many seconds of the processor.

    `variables` are the names of special tokens, `completions` asks for the places of what the assistant says.
    """

    template: str
    variables: dict[str, str]
    conversations: list[list[dict[str, str]]]
    completions: bool
    seconds: int


class _Clock(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return TODAY


class Unfit(Exception):  # noqa: N818 - it is said to the user as it is
    """Why a conversation cannot be rendered, or its completions not be told."""


class Renderer:
    """One template, compiled by the library as `apply_chat_template` does."""

    def __init__(self, template: str, variables: dict[str, str]) -> None:
        from transformers.utils import chat_template_utils

        chat_template_utils.datetime = _Clock
        self.template, self.variables = template, variables
        self._render = chat_template_utils.render_jinja_template

    def text(self, messages: list[dict[str, str]], prompt: bool = False) -> str:
        """The conversation, with `prompt` up to where the assistant would go on."""
        texts, _ = self._render(
            [messages], chat_template=self.template, add_generation_prompt=prompt, **self.variables
        )
        return str(texts[0])

    def completions(self, messages: list[dict[str, str]], text: str) -> list[tuple[int, int]]:
        """Where the assistant's turns stand in the text: by the template's own marks, else by rendering less of it.

        A turn begins where the prompt for it ends and ends where the conversation up to it does.
        """
        if GENERATION.search(self.template):
            _, places = self._render(
                [messages], chat_template=self.template, return_assistant_tokens_mask=True, **self.variables
            )
            return [(int(first), int(last)) for first, last in places[0]]
        found = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self.text(messages[:number], prompt=True) if number else ""
            whole = self.text(messages[: number + 1])
            if not number or not (text.startswith(whole) and whole.startswith(before)):
                raise Unfit(
                    "the template writes a turn differently when others follow, so it does not show where the "
                    "assistant's turns are: one with {% generation %} marks does"
                    if number
                    else "it begins with the assistant, so nothing shows where that turn begins"
                )
            found.append((len(before), len(whole)))
        return found


def render(request: Request) -> list[tuple[str, list[tuple[int, int]]]]:
    """The texts of all conversations, each with the places of its completions, if they are asked for."""
    renderer, answers = Renderer(request["template"], request["variables"]), []
    for number, messages in enumerate(request["conversations"], start=1):
        try:
            text = renderer.text(messages)
            answers.append((text, renderer.completions(messages, text) if request["completions"] else []))
        except MemoryError:
            raise
        except Exception as error:  # whatever a template provokes is the template's fault, and one line
            said = " ".join(str(error).split())[:200] or type(error).__name__
            raise Unfit(f"conversation {number}: {said}") from error
    return answers


def main() -> None:
    import transformers.utils.chat_template_utils  # noqa: F401 - loading it is no work of the template

    raw = sys.stdin.buffer.read()
    request: Request = json.loads(raw)
    limit(MOST_MEMORY + 8 * len(raw), request["seconds"], 0)
    try:
        say(json.dumps(render(request)))
    except MemoryError:
        sys.exit("it needs more memory than a conversation should")
    except RecursionError:
        sys.exit("it is nested too deeply")
    except Unfit as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
