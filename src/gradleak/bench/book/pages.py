"""The book's pages as Markdown: a table for every attack or kind of evidence, the claims of the papers, an index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from gradleak.bench.book import curves
from gradleak.bench.book.line import Line
from gradleak.bench.book.paired import differences
from gradleak.bench.provenance import ABOUT

MADE = "<!-- Made by python -m gradleak.bench.book from docs/measurements and docs/results. Do not edit. -->"
# What is to be said of a column, if a page has it.
SAID = {
    "batches": "Means are over batches, with 95 % intervals over batches (Student's; Clopper and Pearson's where "
    "every batch gave all or nothing); “(one)” is a single batch, which has no interval.",
    "runs": "Intervals are of 95 %, over runs.",
    "control": "“control” is what guessing without the update reaches, by the same measures.",
    "certified, wrong": "“certified, wrong” counts sentences with a proof, and those of them that were not there.",
    "seconds": "Seconds are the median and the longest, mostly on cores that other work shared.",
}
# Columns that stand in this order, behind all others.
LAST = (
    *("whole sentences, %", "of", "ROUGE-1", "ROUGE-2", "ROUGE-L", "tokens named, %", "named wrongly", "control"),
    *("certified, wrong", "seconds", "note"),
)


@dataclass(frozen=True)
class Page:
    """A page: its heading, the page of the documentation that explains it, and what its figures mean."""

    title: str
    explained: str
    about: str


PAGES: dict[str, Page] = {
    "exact": Page("Exact recovery", "exact.md", "Sentences read by linear algebra, with proofs."),
    "soft": Page("Soft spans", "soft.md", "LoRA beyond its rank, and full updates with more tokens than dimensions."),
    "film": Page("FILM", "film.md", "Sentences written by the attacked language model."),
    "auto": Page("Several attacks in turn", "exact.md", "`auto`: exact first, then whatever reads the rest."),
    "bag": Page("Tokens alone", "attacks.md", "`bag` names the tokens of a batch, without their order."),
    "lamp": Page("LAMP's tables", "reproduction.md", "Recipes of the LAMP paper, line by line."),
    "partial": Page("Parts of a model", "partial.md", "Recipes of the partial-gradients paper, line by line."),
    "lti": Page("Learning To Invert", "lti.md", "Recipes of the Learning To Invert paper, line by line."),
    "dager": Page("DAGER's tables", "reproduction.md", "Recipes of the DAGER paper on its own rows, line by line."),
    "grab": Page("GRAB's tables", "reproduction.md", "Recipes of the GRAB paper on its own sentences, line by line."),
    "contains": Page("Candidates", "contains.md", "Which of a list of sentences were in an update."),
    "defences": Page("Defences", "choose-a-defence.md", "What is read under each, by reading and by candidates."),
    "images": Page("Images", "vision.md", "Single images of published shapes of vision models."),
    "certificates": Page(
        "Certificates",
        "exact.md",
        "Certified sentences over all families and clients, on tiny models with drawn weights.",
    ),
    "families": Page("Families and tasks", "families.md", "Tiny models: whether a family is read, not how well."),
    "dp-check": Page("Checks of DP-SGD", "dp.md", "How often planted mistakes are noticed, and right code is not."),
    "size": Page("Memory and time", "size.md", "What an audit takes, up to shapes of 8 B parameters."),
    "control": Page("Guessing", "report.md", "Sentences of ordinary language, drawn without looking at the update."),
    "evidence": Page(
        "Single tests",
        "exact.md",
        "What tests of single tokens, states and beginnings say of batches that are known.",
    ),
}
CLAIMS, CURVES = "claims", "curves"
SOURCES = ["file", "code", "model", "data", "command"]
VERDICTS = ("holds", "does not", "open")


def pages(lines: Sequence[Line], files: Mapping[str, Any], claims: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The text of every page by its name; `files` are all files of measurements by their path in docs."""
    unknown = {line.page for line in lines} - PAGES.keys()
    if unknown:
        raise ValueError(f"no page for {', '.join(sorted(unknown))}")
    own = {name: [line for line in lines if line.page == name] for name in PAGES}
    written = {name: _page(PAGES[name], some, files) for name, some in own.items() if some}
    return {"index": _index(own, files, claims), CLAIMS: _claims(claims, files), CURVES: _curves(files), **written}


def _page(page: Page, lines: Sequence[Line], files: Mapping[str, Any]) -> str:
    sources = list(dict.fromkeys(line.file for line in lines))
    rows = [{**line.values, "note": _note(files[line.file]), "file": _link(line.file)} for line in lines]
    columns = _columns(rows)
    intro = [page.about, f"How it works: [{page.explained}](../{page.explained})."]
    intro += [text for name, text in SAID.items() if name in columns and (name != "batches" or "seconds" in columns)]
    return "\n\n".join(
        [
            f"# {page.title}", MADE, " ".join(intro),
            table(columns, [[row.get(name, "") for name in columns] for row in rows]),
            "## Where the figures come from",
            table(SOURCES, [_source(name, files[name]) for name in sources]),
        ]
    ) + "\n"  # fmt: skip


def _columns(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """All that some row has, those of `LAST` in its order, papers' figures and the file at the end."""
    used = dict.fromkeys(name for row in rows for name, value in row.items() if value)
    papers = [name for name in used if name.startswith("paper")]
    end = [*(name for name in LAST if name in used), *papers, "file"]
    return [*(name for name in used if name not in end), *end]


def _note(content: Any) -> str:
    """What is to be known of a file's figures: its own note, and what is said behind its command."""
    _, said = _split(content[ABOUT]["command"])
    return "; ".join(part for part in (content.get("note", ""), said.removeprefix(", ")) if part)


def _source(name: str, content: Any) -> list[str]:
    about = content[ABOUT]
    command, note = _split(about["command"])
    return [_link(name), "; ".join(about["code"]), about["model"], about["data"], f"`{command}`{note}"]


def _split(command: str) -> tuple[str, str]:
    """A command, and what is said of it behind a comma.

    >>> _split("python -m x --out y.json, before the last change")
    ('python -m x --out y.json', ', before the last change')
    """
    before, comma, after = command.partition(", ")
    return before, f"{comma}{after}"


def _link(name: str) -> str:
    return f"[{PurePosixPath(name).stem}](../{name})"


def _claims(claims: Sequence[Mapping[str, Any]], files: Mapping[str, Any]) -> str:
    parts = [
        "# Claims of the papers",
        MADE,
        "What four papers say of leaks from gradients, and what was measured here. **Holds** and **does not** are "
        "said where the whole interval says so or a whole table does, on the models and trials that are named; "
        "everything else is **open**, with what is missing. Ours are mostly MiniLM (6 layers, 384 wide) and SmolLM2 "
        "(135 M) on few trials with special tokens left out; theirs are BERT-base and GPT-2.",
    ]
    for paper in dict.fromkeys(claim["paper"] for claim in claims):
        own = [claim for claim in claims if claim["paper"] == paper]
        rows = [
            [
                claim["claim"],
                str(claim["theirs"]),
                _ours(claim, files),
                f"**{claim['verdict']}**{_why(claim)}",
                _where(claim),
            ]
            for claim in own
        ]
        parts += [f"## {paper}", table(["claim", "paper", "here", "verdict", "where"], rows)]
    return "\n\n".join(parts) + "\n"


def _curves(files: Mapping[str, Any]) -> str:
    return "\n\n".join(
        [
            "# Whole sentences against batch size and noise", MADE,
            f"![Whole sentences against batch size and noise](../{curves.FIGURE})",
            "Every sentence of a batch counts that came back token for token. The attacker knows the number of "
            "sentences, and of MiniLM under noise the labels and lengths too. Bars and brackets are 95 % intervals "
            "over batches; one batch says nothing of the spread. Points without a bar's end are not exact: ten "
            "batches that all came back leave an interval down to 69. How it works: [exact.md](../exact.md), "
            "[soft.md](../soft.md), [film.md](../film.md).",
            table(["model and data", "at", "whole, %", "of", "guessing, %"], curves.rows(files)),
            "## Where the figures come from",
            table(SOURCES, [_source(name, files[name]) for name in curves.sources(files)]),
        ]
    ) + "\n"  # fmt: skip


def _ours(claim: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    """What was measured, and of lines whose every trial is kept the paired difference."""
    return f"{claim['ours']}; {differences(files, claim['paired'])}" if "paired" in claim else str(claim["ours"])


def _why(claim: Mapping[str, Any]) -> str:
    return f": {claim['why']}" if claim.get("why") else ""


def _where(claim: Mapping[str, Any]) -> str:
    page = str(claim["where"])
    return f"[{page.partition('#')[0]}](../{page})"


def _index(own: Mapping[str, Sequence[Line]], files: Mapping[str, Any], claims: Sequence[Mapping[str, Any]]) -> str:
    verdicts = [claim["verdict"] for claim in claims]
    counted = ", ".join(f"{verdict} {verdicts.count(verdict)}" for verdict in VERDICTS)
    rows = [[f"[Claims of the papers]({CLAIMS}.md)", "", "", f"{len(claims)} claims of four papers: {counted}"]]
    rows += [[f"[Curves]({CURVES}.md)", "", "", "Whole sentences against batch size and noise, with the control"]]
    proved = {name: proofs(some) for name, some in own.items()}
    for name, some in own.items():
        if some:
            certified, wrong = proved[name]
            counts = f"{certified:,}, {wrong}" if certified else ""
            rows.append([f"[{PAGES[name].title}]({name}.md)", str(len(some)), counts, PAGES[name].about])
    certified, wrong = (sum(counts) for counts in zip(*proved.values(), strict=True))
    return "\n\n".join(
        [
            "# Results", MADE,
            f"All figures of {len(files)} committed files of measurements, a line a setting. Every file names the "
            "code, the model, the data and the command that made it; the pages are made of the files by",
            "    python -m gradleak.bench.book",
            "and a test fails where they differ. Click a heading to sort a table. Figures of other pages of this "
            "documentation that have no file are of the time before files were kept; their commands stand there.",
            f"**{certified:,} sentences (and images) were certified in all these runs, and {wrong} of them were "
            "not in their batch.** Runs of the same batches by several versions of the code count each; left out are "
            "files of code before a mend, whose names say so ([what was wrong then](certificates.md)), and files too "
            "old to say.",
            table(["page", "lines", "certified, wrong", "what"], rows),
        ]
    ) + "\n"  # fmt: skip


def proofs(lines: Sequence[Line]) -> tuple[int, int]:
    """How many sentences were certified, and how many of these wrongly, by the code that is kept.

    >>> counted = Line("exact", "measurements/a.json", {"certified, wrong": "13, 1"})
    >>> before = Line("exact", "measurements/a_before.json", {"certified, wrong": "5, 5"})
    >>> unknown = Line("exact", "measurements/b.json", {"certified, wrong": "2, not recorded"})
    >>> proofs([counted, counted, before, unknown])
    (26, 2)
    """
    certified = wrong = 0
    for line in lines:
        counts = line.values.get("certified, wrong", "").split(", ")
        if line.values.get("which") == "all":
            counts = [line.values["certified"], line.values["wrong"]]
        if len(counts) == 2 and counts[1].isdecimal() and "_before" not in line.file:
            certified, wrong = certified + int(counts[0]), wrong + int(counts[1])
    return certified, wrong


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown.

    >>> print(table(["a", "b"], [["1", "x | y"]]))
    | a | b |
    |---|---|
    | 1 | x \\| y |
    """
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (headings, *rows)]
    head, *body = [f"| {' | '.join(row)} |" for row in escaped]
    return "\n".join([head, "|---" * len(headings) + "|", *body])
