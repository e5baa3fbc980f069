"""The verdict on audits of images: by PSNR against the mean auxiliary image, in words for images, never "safe"."""

import csv
import json
import re

import pytest
from blobs import SMALL, blobs, write_npz
from sample import sample_results

from gradleak import GradleakError, audit
from gradleak.attacks.base import Reconstruction
from gradleak.audits.redact import redact
from gradleak.cli import main
from gradleak.core.budget import Budget
from gradleak.report.build import write_report
from gradleak.report.compare import write_comparison
from gradleak.scoring.metrics.pixels import CLOSE
from gradleak.scoring.score_images import score_images
from gradleak.verdict.compare import compare
from gradleak.verdict.gather import gather
from gradleak.verdict.judge import judge


@pytest.fixture
def data(tmp_path):
    return write_npz(tmp_path / "blobs.npz", blobs(20), blobs(440, seed=1))


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr("sys.argv", ["gradleak", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        return stopped.value.code or 0, said.out, said.err

    return run


def test_close_images_are_counted_one_by_one():
    truth = blobs(4)
    guess = Reconstruction(images=[truth.uris()[0], truth.uris()[2], *blobs(2, seed=7).uris()])
    scored = score_images(guess, truth)
    assert scored.metrics["close_images"] == 25 * sum(pair.scores["psnr"] >= CLOSE for pair in scored.pairs) >= 50


def test_guessing_is_no_leak(data):
    verdict = judge([audit(SMALL, data=data, attack="control", trials=12)])
    (one,) = verdict.scenarios
    assert (one.level, one.attacks[0].measure) == ("not shown", "psnr")
    assert one.attacks[0].leak == one.attacks[0].control
    assert one.attacks[0].obstacles == []  # nothing is recorded that would tell why


def test_a_picture_read_back_is_critical_and_a_defence_that_hides_it_is_named(data, tmp_path, monkeypatch):
    """What a linear inverter reads of plain gradients it does not read under so much noise."""
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path))
    settings = {"data": data, "attack": "lti", "options": {"layers": "linear"}, "trials": 20}
    plain, noisy = (audit(SMALL, **settings, defenses=chain) for chain in ([], ["noise:sigma=10"]))
    verdict = judge([plain, noisy])
    levels = {one.defense: one for one in verdict.scenarios}
    first, second = levels["none"], levels["noise:sigma=10.0"]
    assert first.level in ("critical", "high")
    assert second.level == "not shown"
    assert re.search(r"PSNR \d+\.\d \[", first.headline)
    assert first.change.startswith("Measured to bring the best attack down to guessing: noise:sigma=10")


def test_cut_short_is_never_a_no(data):
    results = audit(SMALL, data=data, attack="ig", trials=10, budget=Budget(0))
    (one,) = judge([results]).scenarios
    assert one.level == "unfinished"
    assert [obstacle.kind for obstacle in one.attacks[0].obstacles] == ["budget"]


def test_old_results_are_refused(data):
    results = audit(SMALL, data=data, attack="control", trials=2)
    old = results.model_copy(update={"summary": {name: results.summary[name] for name in ("mse", "psnr")}})
    with pytest.raises(GradleakError, match="older gradleak"):
        judge([old])


def test_the_commands(call, data, tmp_path):
    audit = ("audit", "--model", SMALL, "--data", data, "--attack", "control", "--trials", 3)
    for name in ("a", "b"):
        code, out, _ = call(*audit, "--out", tmp_path / "runs" / name, "--seed", int(name, 16))
        assert code == 0
        assert "images came back to 20 dB or better" in out
    assert "Unclear: " in (tmp_path / "runs" / "a" / "report.html").read_text()
    code, out, _ = call("verdict", tmp_path / "runs")
    assert code == 0
    assert "6 images" in out
    assert not re.search(r"\bsafe|ROUGE|sentence", out)
    assert json.loads((tmp_path / "runs" / "verdict.json").read_text())["scenarios"][0]["level"] == "unclear"
    assert len(gather(tmp_path / "runs").results) == 2
    assert call("export", tmp_path / "runs", "--out", tmp_path / "x.csv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "x.csv").open(newline="")))
    assert len(rows) == 6
    assert [row["image"] for row in rows] == ["1"] * 6
    assert float(rows[0]["psnr"]) > 0
    assert "data:image" not in (tmp_path / "x.csv").read_text()
    assert call("report", tmp_path / "runs")[0] == 0
    page = (tmp_path / "runs" / "report.html").read_text()
    assert page.count("<img src=") == 2 * 6
    assert "<script" not in page
    assert not re.search("ROUGE|[Ss]entence", page.partition("</style>")[2])
    code, out, _ = call("compare", tmp_path / "runs" / "a", tmp_path / "runs" / "b", "--out", tmp_path / "c")
    assert code == 0
    assert "control shows no clear change: PSNR" in out


def test_the_same_images_are_compared_one_by_one(data, tmp_path):
    first = audit(SMALL, data=data, attack="control", trials=3)
    second = audit(SMALL, data=data, attack="ig", options={"steps": 20}, trials=3)
    comparison = compare([first], [second], ("a", "b"))
    (only,) = comparison.differences
    assert (only.paired, only.measure, len(only.sentences)) == (True, "psnr", 3)
    page = write_comparison(comparison, tmp_path).read_text()
    assert page.count("<img src=") == 3 * 3
    assert "Images that changed" in page
    masked = compare([redact(first)], [redact(second)], ("a", "b")).differences[0]
    assert (masked.change, masked.paired) == (only.change, True)
    other = audit(SMALL, data=data, attack="ig", options={"steps": 1}, trials=3, seed=1)
    assert not compare([redact(first)], [redact(other)], ("a", "b")).differences[0].paired
    with pytest.raises(GradleakError, match="nothing in common"):
        compare([first], [sample_results()], ("a", "b"))


def test_text_and_images_that_lie_together_get_a_page_each(data, tmp_path):
    images = audit(SMALL, data=data, attack="control", trials=2)
    page = write_report([sample_results(), images], tmp_path)
    other = tmp_path / "report-images.html"
    assert page == tmp_path / "report.html"
    assert 'href="report-images.html"' in page.read_text()
    assert 'href="report.html"' in other.read_text()
    assert "<img" not in page.read_text()
    assert "Rosa" not in other.read_text()
    assert other.stat().st_mode & 0o777 == 0o600


def test_a_report_of_images_shows_only_our_own(data, tmp_path):
    images = audit(SMALL, data=data, attack="control", trials=2)
    images.trials[0].pairs[0].reconstruction = "https://evil.example/x.png"
    images.trials[1].pairs[0].truth = '"><script>'
    page = write_report(images, tmp_path).read_text()
    assert "evil.example" not in page
    assert "<script" not in page
    assert page.count("<img src=") == 2
    redacted = write_report(images, tmp_path, redact=True).read_text()
    assert "<img" not in redacted
    assert "The images are taken out." in redacted
