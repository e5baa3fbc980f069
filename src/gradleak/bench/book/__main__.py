"""Write the pages of the results book: `python -m gradleak.bench.book`, from the root of the repository."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from gradleak.bench.book import curves
from gradleak.bench.book.lines import lines_of
from gradleak.bench.book.pages import pages
from gradleak.core.files import write_text
from gradleak.core.output import say

FOLDERS = ("measurements", "results")
CLAIMS = Path("results", "claims.yaml")


def kept_files(docs: Path) -> dict[str, Any]:
    """All files of measurements, by their path within the documentation."""
    found = [path for folder in FOLDERS for path in sorted((docs / folder).glob("*.json"))]
    return {path.relative_to(docs).as_posix(): json.loads(path.read_text(encoding="utf-8")) for path in found}


def book(docs: Path) -> dict[str, str]:
    """Every page of the book by its name."""
    files = kept_files(docs)
    claims = yaml.safe_load((docs / CLAIMS).read_text(encoding="utf-8"))
    return pages([line for name, content in files.items() for line in lines_of(name, content)], files, claims)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.book")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="the folder of the documentation")
    given = parser.parse_args(arguments)
    written = book(given.docs)
    place = given.docs / "book"
    place.mkdir(exist_ok=True)
    for old in place.glob("*.md"):
        if old.stem not in written:
            old.unlink()
    for name, text in written.items():
        write_text(place / f"{name}.md", text)
    write_text(given.docs / curves.FIGURE, curves.figure(kept_files(given.docs)))
    say(f"{len(written)} pages in {place}")


if __name__ == "__main__":
    main()
