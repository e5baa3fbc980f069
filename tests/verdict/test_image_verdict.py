"""The verdict on audits of images: by PSNR against the mean auxiliary image, in words for images, never "safe"."""

import json
import re

import pytest
from blobs import SMALL, blobs, write_npz

from gradleak import GradleakError, audit_images
from gradleak.attacks.base import Reconstruction
from gradleak.cli import main
from gradleak.core.budget import Budget
from gradleak.scoring.metrics.pixels import CLOSE
from gradleak.scoring.score_images import score_images
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
    verdict = judge([audit_images(SMALL, data=data, attack="control", trials=12)])
    (one,) = verdict.scenarios
    assert (one.level, one.attacks[0].measure) == ("not shown", "psnr")
    assert one.attacks[0].leak == one.attacks[0].control
    assert one.attacks[0].obstacles == []  # nothing is recorded that would tell why


def test_a_picture_read_back_is_critical_and_a_defence_that_hides_it_is_named(data, tmp_path, monkeypatch):
    """What a linear inverter reads of plain gradients it does not read under so much noise."""
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path))
    settings = {"data": data, "attack": "lti", "options": {"layers": "linear"}, "trials": 20}
    plain, noisy = (audit_images(SMALL, **settings, defenses=chain) for chain in ([], ["noise:sigma=10"]))
    verdict = judge([plain, noisy])
    levels = {one.defense: one for one in verdict.scenarios}
    first, second = levels["none"], levels["noise:sigma=10.0"]
    assert first.level in ("critical", "high")
    assert second.level == "not shown"
    assert re.search(r"PSNR \d+\.\d \[", first.headline)
    assert first.change.startswith("Measured to bring the best attack down to guessing: noise:sigma=10")


def test_cut_short_is_never_a_no(data):
    results = audit_images(SMALL, data=data, attack="ig", trials=10, budget=Budget(0))
    (one,) = judge([results]).scenarios
    assert one.level == "unfinished"
    assert [obstacle.kind for obstacle in one.attacks[0].obstacles] == ["budget"]


def test_old_results_are_refused(data):
    results = audit_images(SMALL, data=data, attack="control", trials=2)
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
    for words in (("export", tmp_path / "runs", "--out", tmp_path / "x.csv"), ("report", tmp_path / "runs")):
        code, _, err = call(*words)
        assert code == 2
        assert "holds audits of images" in err
