"""The commands and code of the documentation, taken out of its pages."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# The pages for users, whose commands are all run; those of the others are only checked.
GUIDES = (
    "quickstart", "flower", "finetunes", "choose-a-defence", "report", "verdict", "threat-models",
    "write-an-attack", "write-a-defence", "faq", "index",
)  # fmt: skip
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)
# Single capitals, dots and brackets in a command say that something is to be filled in.
_OPEN = re.compile(r"[A-Z]|…|\[.*|.*\]")
_INDENTED = re.compile(r"(?:^    .*\n?)+", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what stands behind it, and its text."""

    language: str
    extra: str
    text: str

    @property
    def title(self) -> str | None:
        found = re.search(r'title="([^"]+)"', self.extra)
        return found[1] if found else None


def blocks(page: Path) -> list[Block]:
    return [Block(language, extra.strip(), text) for language, extra, text in _FENCE.findall(page.read_text())]


def commands(text: str) -> list[list[str]]:
    """The command lines of a shell text, as words; lines that end in a backslash go on, comments are left out."""
    joined = text.replace("\\\n", " ")
    lines = (shlex.split(line, comments=True) for line in joined.splitlines())
    return [words for words in lines if words]


def shell_commands(page: Path) -> list[list[str]]:
    """Every command of a page: of fenced shell blocks, and whole ones of indented blocks that begin with our name."""
    found = [words for block in blocks(page) if block.language == "sh" for words in commands(block.text)]
    rest = _FENCE.sub("", page.read_text())
    for block in _INDENTED.findall(rest):
        if block.strip().startswith("gradleak "):
            whole = [words for words in commands(block) if not any(map(_OPEN.fullmatch, words))]
            found += [words for words in whole if words[0] == "gradleak"]
    return found
