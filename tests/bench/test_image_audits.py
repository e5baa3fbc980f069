"""Audits of images in short: figures and commands without a picture, and the book's line of them."""

import json

import pytest
from blobs import SMALL, blobs, write_npz

from gradleak import AuditSpec, GradleakError, audit
from gradleak.bench import image_audits
from gradleak.bench.book.lines import lines_of
from gradleak.bench.provenance import missing

pytestmark = pytest.mark.usefixtures("own_cache")


def test_audits_are_kept_without_pictures(tmp_path):
    data = write_npz(tmp_path / "blobs.npz", blobs(6), blobs(40, seed=1))
    common = {"model": SMALL, "data": str(data), "trials": 3}
    lti = audit(AuditSpec(**common, attack="lti", options={"layers": "linear"}, defenses=["sign"]))
    ig = audit(AuditSpec(**common, attack="ig", options={"steps": 2}, seed=5))
    for name, results in (("lti", lti), ("ig", ig)):
        (tmp_path / name).mkdir()
        results.save(tmp_path / name)
    out = tmp_path / "kept.json"
    image_audits.main([str(tmp_path / "lti"), str(tmp_path / "ig"), "--out", str(out)])
    content = json.loads(out.read_text())
    assert not missing(content)
    assert "base64" not in out.read_text()
    assert str(tmp_path) not in out.read_text()
    first, second = content["cells"]
    assert first["mse"] == pytest.approx(lti.summary["mse"].mean, abs=1e-5)
    assert first["control"]["psnr"] == pytest.approx(lti.control["psnr"].mean, abs=1e-5)
    assert first["command"] == (
        f"gradleak audit --model {SMALL} --data blobs.npz --attack lti --trials 3 -o layers=linear --defense sign"
    )
    assert second["command"].endswith("--attack ig --trials 3 --seed 5 -o steps=2")
    line, other = lines_of("measurements/kept.json", content)
    assert line.page == "images"
    assert line.values["auxiliary images"] == "40"
    assert line.values["labels right"] == "not asked"  # lti does not say
    assert other.values["labels right"] == f"{second['labels_right']} of 3"
    assert other.values["defence"] == "none"


def test_other_audits_are_refused(tmp_path):
    results = audit(AuditSpec(model=SMALL, data=str(write_npz(tmp_path / "a.npz", blobs(3))), attack="ig",
                                   options={"steps": 1}, trials=1))  # fmt: skip
    scores = [trial.model_copy(update={"scores": {}}) for trial in results.trials]
    with pytest.raises(GradleakError, match="no audit of images with a truth"):
        image_audits.cell(results.model_copy(update={"trials": scores}))
