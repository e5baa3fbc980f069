"""The commands and code of the documentation, taken out of its pages."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# The pages for users, whose commands are all run; those of the others are only checked.
GUIDES = (
    "quickstart", "flower", "finetunes", "choose-a-defence", "report", "verdict", "threat-models",
    "write-an-attack", "write-a-defence", "extend", "settings", "faq", "index", "ci", "annex",
)  # fmt: skip
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)
# Single capitals, dots and brackets in a command say that something is to be filled in.
_OPEN = re.compile(r"[A-Z]|…|\[.*|.*\]")
_INDENTED = re.compile(r"(?:^    .*\n?)+", re.M)
_CODE = re.compile(r"`([^`\n]+)`")
# Groups of entry points, which look like modules, and folders that experiments write.
ENTRY_POINTS = {
    f"gradleak.{kind}" for kind in ["attacks", "image_attacks", "defenses", "metrics", "families", "modalities"]
}
WRITTEN = {"cells/"}


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
    """The command lines of a shell text, as words; a backslash joins lines, comments are left out."""
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


def imported_names(page: Path) -> list[tuple[str, str]]:
    """What the Python of a page imports from this package, as module and name."""
    texts = [block.text for block in blocks(page) if block.language == "python"]
    texts += [line.strip() for line in re.findall(r"^    from gradleak.*$", _FENCE.sub("", page.read_text()), re.M)]
    return [
        (node.module or "", alias.name)
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradleak")
        for alias in node.names
    ]


def dotted_names(page: Path) -> list[str]:
    """Modules, functions and classes of this package that the text of a page names in full."""
    found = (re.match(r"gradleak(?:\.\w+)+", code) for code in _CODE.findall(_FENCE.sub("", page.read_text())))
    return [match[0] for match in found if match and match[0] not in ENTRY_POINTS]


def file_names(page: Path) -> list[str]:
    """Files and folders of the repository that the text of a page names, such as `matching/rules.py`."""
    text = _FENCE.sub("", page.read_text())
    path = re.compile(r"(?:[\w-]+/)+(?:[\w.-]+\.(?:py|yaml|json|md))?")
    return [code for code in _CODE.findall(text) if path.fullmatch(code) and code not in WRITTEN]
