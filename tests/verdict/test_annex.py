"""The record for reviewers: complete, the same in both forms, and never calling anything safe."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from command_line import run
from hypothesis import given
from hypothesis import strategies as st
from invented import audit

from gradleak import GradleakError, write_annex
from gradleak.report.annex.document import Document, Items, Section, Table
from gradleak.report.annex.hashes import LISTED, file_hashes
from gradleak.report.annex.markdown import markdown
from gradleak.report.annex.sections import annex
from gradleak.report.annex.write import page
from gradleak.verdict.attempts import Missing
from gradleak.verdict.gather import Gathered

LOW = [5, 6, 4, 5, 6, 5, 4, 6, 5, 5]
AUDITS = [
    audit([100, 90, 95], certified=True),
    audit(LOW, scenario={"defenses": ["sign"]}, status="budget-exhausted"),
    audit(LOW, scenario={"defenses": ["dpsgd:noise=1.0,clip=1.0"]}),
]


@pytest.fixture
def folder(tmp_path):
    for number, results in enumerate(AUDITS):
        place = tmp_path / "runs" / str(number)
        place.mkdir(parents=True)
        results.save(place)
    return tmp_path / "runs"


def of(*results, missing=(), place="."):
    return annex(Gathered(Path(place), list(results), list(missing)))


def texts(document):
    """Every text of a document."""
    yield from (document.title, document.kicker, document.headline)
    for section in document.sections:
        yield section.heading
        for block in section.blocks:
            if isinstance(block, str):
                yield block
            elif isinstance(block, Items):
                yield from block.lines
            else:
                yield from block.headings
                for row in block.rows:
                    yield from row


def test_it_has_all_that_reviewers_ask_for(folder):
    document = annex(Gathered(folder, AUDITS))
    headings = [section.heading for section in document.sections]
    for wanted in (
        "Findings", "What was examined", "Threat model", "Measured, declared, computed", "Attacks", "Scores",
        "Examples", "Why attacks did not read more", "Changes", "Limits", "Versions and hashes", "To be added",
    ):  # fmt: skip
        assert any(wanted in heading for heading in headings), wanted
    whole = "\n".join(texts(document))
    for wanted in (
        "honest-but-curious", "measured", "declared", "computed", "95 [83, 100]", "f" * 32, "torch 2",
        "10 trials cut short", "Ceiling by differential privacy", "certificates", "malicious server", "Seeds: 0",
    ):  # fmt: skip
        assert wanted in whole, wanted


def test_both_forms_say_the_same(folder):
    write_annex(folder)
    document = annex(Gathered(folder, AUDITS))
    plain = re.sub(r"\\(.)", r"\1", html.unescape((folder / "annex.md").read_text())).replace("`", "")
    shown = re.sub("</?code>", "", html.unescape((folder / "annex.html").read_text()))
    for text in texts(document):
        text = text.replace("`", "")
        if not text.startswith("Written by"):  # holds the time
            assert " ".join(text.split()) in plain, text
            assert text in shown, text


def test_nothing_is_called_safe(folder):
    whole = "\n".join(text for results in (AUDITS, AUDITS[1:], AUDITS[2:]) for text in texts(of(*results)))
    assert not re.search(
        r"\b(safe|secure|harmless|no risk|protected)\b", whole.replace("secure aggregation", ""), re.I
    )


def test_words_are_masked_where_asked(folder, tmp_path):
    assert run("annex", folder, "--out", tmp_path / "open").code == 0
    assert run("annex", folder, "--out", tmp_path / "masked", "--redact", "--title", "Our system").code == 0
    for name in ("annex.md", "annex.html"):
        assert "names Rosa" in (tmp_path / "open" / name).read_text()
        masked = (tmp_path / "masked" / name).read_text()
        assert "Rosa" not in masked
        assert "Words are masked" in masked
        assert "Our system" in masked
        assert (tmp_path / "masked" / name).stat().st_mode & 0o777 == 0o600


def test_what_is_missing_is_said():
    whole = "\n".join(texts(of(AUDITS[2], missing=[Missing("cell-3 (failed: Rosa)", lambda _: False)])))
    assert "1 planned attempt without a result" in whole
    assert "cell-3 (failed" not in whole  # an error may quote a text


def test_an_update_without_a_truth():
    recorded = audit([50], scenario={"recorded": True}, certified=True)
    (trial,) = recorded.trials
    pair = trial.pairs[0].model_copy(update={"truth": "", "scores": {}})
    bare = trial.model_copy(update={"scores": {}, "control_scores": {}, "truth": [], "pairs": [pair]})
    results = recorded.model_copy(update={"trials": [bare], "summary": {}, "control": {}})
    whole = "\n".join(texts(of(results)))
    for wanted in ("Critical", "was not verified", "nothing could be scored", "only what the update itself proves"):
        assert wanted in whole
    assert "read 50 of 0" in whole  # what was read back


def test_hashes_are_those_of_the_files(folder):
    listed = dict(file_hashes(folder))
    assert list(listed) == ["0/results.json", "1/results.json", "2/results.json"]
    before = listed["0/results.json"]
    place = folder / "0" / "results.json"
    place.write_text(place.read_text() + "\n")
    assert dict(file_hashes(folder))["0/results.json"] != before
    for number in range(LISTED):
        (folder / f"more-{number}").mkdir()
        AUDITS[0].save(folder / f"more-{number}")
    ((name, value),) = file_hashes(folder)
    assert f"{LISTED + 3} files" in name
    assert len(value) == 64


def test_results_in_python_need_a_folder(tmp_path):
    with pytest.raises(GradleakError, match="folder"):
        write_annex(AUDITS[0])
    assert write_annex(AUDITS[:2], tmp_path).name == "annex.md"


def test_commands_can_be_copied():
    command = "gradleak audit --model my_model --data 'a b.csv' --client fedsgd:wire=bf16"
    lines = [
        f"Not measured: bf16. Try: {command}",
        "Not tried; `gradleak contains` tries it.",
        "a: gradleak `x",
        "- b",
    ]
    document = Document("T", "K", "H", [Section("S", [Items(lines)])])
    assert markdown(document).splitlines()[-4:] == [
        f"- Not measured: bf16. Try: `{command}`",
        "- Not tried; `gradleak contains` tries it.",
        "- a: gradleak \\`x",
        "- \\- b",
    ]
    assert f"<code>{html.escape(command).replace('&#x27;', '&#39;')}</code>" in page(document)


@given(text=st.text() | st.text().map("a: gradleak {0} `gradleak {0}` {0}".format))
def test_no_text_becomes_markup(text):
    document = Document("T", "K", "H", [Section("S", [text, Items([text]), Table(["a", "b"], [[text, text]])])])
    lines = markdown(document).splitlines()
    assert sum(line.startswith("#") for line in lines) == 2
    assert sum(line.startswith("| ") for line in lines) == 3
    assert not any("<" in line for line in lines)
    row = re.sub(r"\\.", "", lines[-1])
    assert row.count("|") == 3
    assert "<script" not in page(document).lower().replace("&lt;script", "")
