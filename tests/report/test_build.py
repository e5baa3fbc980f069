"""The page and the terminal: complete, self-contained, private, and safe with hostile text."""

import base64
import hashlib
import io
import json
import re
from pathlib import Path

import pytest
from sample import sample_results

from gradleak import GradleakError
from gradleak.audits.redact import redact
from gradleak.core.console import SafeConsole
from gradleak.report.build import render as render_folder
from gradleak.report.build import write_report
from gradleak.report.terminal import print_results
from gradleak.report.wording import remarks
from gradleak.verdict.gather import Gathered

HOSTILE = '<script>alert("x")</script><img src=//evil.example>'


@pytest.fixture
def results():
    return sample_results()


def render(results):
    return render_folder(Gathered(Path(), [results]))


def embedded(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def test_page_tells_everything(results):
    page = render(results)
    for expected in (
        "Rosa moved to ward six.", "lamp-cos", "95 % interval", "honest-but-curious", "control",
        "says nothing can be read",
        "torch", "steps=3", results.scenario.model_fingerprint, "<svg", "prefers-color-scheme",
        "@media print",
    ):  # fmt: skip
        assert expected in page
    assert embedded(page)["marks"][0][:2] == [["rosa moved", "p"], [" ", ""]]
    assert ["six", "w"] in embedded(page)["marks"][0]


def test_what_a_manifest_may_have_left_out_is_said_where_even_the_truth_is_far(results):
    def remarked(distance, **scenario):
        first = results.trials[0].model_copy(update={"truth_distance": distance})
        changed = {"scenario": results.scenario.model_copy(update=scenario), "trials": [first]}
        return " ".join(remarks(results.model_copy(update=changed)))

    assert "mode=train" in remarked(0.3, recorded=True)
    assert "something that is not declared cost the attacker" in remarked(0.3, recorded=True)
    assert "one before that training" in remarked(0.3, recorded=True)
    assert "one before that training" not in remarked(0.3, recorded=False)  # made here, by the rule that is shown
    assert "one before that training" not in remarked(0.01, recorded=True)
    through = results.scenario.client.model_copy(update={"mode": "train"})
    assert "mode=train" not in remarked(0.3, recorded=True, client=through)


def test_certificates_and_limits_are_shown(results):
    trial = results.trials[0]
    pair = trial.pairs[0].model_copy(update={"certified": True, "stage": "exact"})
    sentence = trial.reconstruction.sentences[0].model_copy(update={"certified": True, "stage": "exact"})
    found = trial.reconstruction.model_copy(update={"sentences": [sentence], "notes": ["the budget ended"]})
    shown = results.model_copy(
        update={"trials": [trial.model_copy(update={"pairs": [pair], "reconstruction": found}), results.trials[1]]}
    )
    page = render(shown)
    rows = [dict(zip(embedded(page)["columns"], row, strict=True)) for row in embedded(page)["rows"]]
    assert [(row["certified"], row["stage"]) for row in rows] == [(True, "exact"), (False, None)]
    assert "1 of 2 sentences carry a certificate" in page
    assert "0 of these 1 are exactly right" in page
    assert "The budget ended (1 trial)." in page
    stream = io.StringIO()
    console = SafeConsole(file=stream, width=120)
    print_results(shown, console)
    assert "certified" in stream.getvalue()


def test_page_asks_nothing_of_the_network(results):
    page = render(results)
    assert not re.findall(r"""(?:src|href|url\()\s*=?\s*["']?(?:https?:)?//""", page)
    assert "default-src 'none'" in page


def test_only_our_own_script_may_run(results):
    page = render(results)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert not re.findall(r"\son\w+=", page)
    assert "innerHTML" not in script


def test_hostile_text_is_shown_as_text(results):
    pair = results.trials[0].pairs[0].model_copy(update={"reconstruction": HOSTILE, "truth": HOSTILE})
    trial = results.trials[0].model_copy(update={"pairs": [pair]})
    page = render(results.model_copy(update={"trials": [trial]}))
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    assert HOSTILE in [row[embedded(page)["columns"].index("recovered")] for row in embedded(page)["rows"]]


def test_report_is_private(results, tmp_path):
    assert write_report(results, tmp_path).stat().st_mode & 0o777 == 0o600


def test_a_report_of_a_folder_of_one_or_of_several(results, tmp_path):
    results.save(tmp_path)
    assert write_report(tmp_path) == tmp_path / "report.html"
    assert "Rosa" in (tmp_path / "report.html").read_text()
    (tmp_path / "elsewhere").mkdir()
    page = write_report(str(tmp_path), tmp_path / "elsewhere", redact=True)
    assert page == tmp_path / "elsewhere" / "report.html"
    assert "Rosa" not in page.read_text()
    assert write_report([results, results], tmp_path).is_file()
    with pytest.raises(GradleakError, match="into which folder"):
        write_report(results)


def test_redaction_leaves_structure_and_no_word(results):
    masked = redact(results)
    for text in (render(masked), masked.model_dump_json()):
        assert not any(word in text.lower() for word in ("rosa", "moved", "refused", "loan"))
    assert masked.trials[0].pairs[0].truth == "w1 w2 w3 w4 w5"
    assert masked.trials[0].pairs[0].reconstruction == "w1 w2 w5 w3"
    assert ["w1 w2", "p"] in embedded(render(masked))["marks"][0]
    assert masked.summary == results.summary
    assert redact(masked) == masked


def test_terminal_shows_markup_as_text(results):
    pair = results.trials[0].pairs[0].model_copy(update={"reconstruction": "[bold]x[/bold] [red", "truth": "[/]"})
    trial = results.trials[0].model_copy(update={"pairs": [pair]})
    stream = io.StringIO()
    print_results(results.model_copy(update={"trials": [trial]}), SafeConsole(file=stream, width=140))
    assert "[bold]x[/bold] [red" in stream.getvalue()
    assert "ROUGE-L" in stream.getvalue()


@pytest.mark.parametrize(
    ("status", "expected"), [("interrupted", "interrupted"), ("budget-exhausted", "time budget")]
)
def test_unfinished_runs_say_so(results, status, expected):
    unfinished = results.model_copy(update={"status": status})
    stream = io.StringIO()
    print_results(unfinished, SafeConsole(file=stream, width=140))
    assert expected in stream.getvalue()
    assert expected in render(unfinished)
