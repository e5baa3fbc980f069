"""Writes the pages of docs/gallery/ from two audits of invented sentences: python docs/make_gallery.py (a minute)."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from gradleak import Results, audit, write_annex, write_report
from gradleak.report.compare import write_comparison
from gradleak.verdict.compare import compare

PLACE = Path(__file__).with_name("gallery")
AUDIT = {"trials": 3, "batch_size": 2, "seed": 3}


def main() -> None:
    plain = anonymous(audit("minilm", **AUDIT))
    signs = anonymous(audit("minilm", defenses=["sign"], budget="10s", **AUDIT))
    with tempfile.TemporaryDirectory() as folder:
        write_report(plain, f"{folder}/one")
        write_report([plain, signs], f"{folder}/two")
        write_annex([plain, signs], folder)
        write_comparison(compare([plain], [signs], ("plain", "signs")), Path(folder))
        for source, name in {
            "one/report.html": "report.html", "two/report.html": "two-audits.html", "annex.html": "annex.html",
            "compare.html": "compare.html",
        }.items():  # fmt: skip
            shutil.copyfile(Path(folder) / source, PLACE / name)


def anonymous(results: Results) -> Results:
    """Without what the machine is, which tells nothing here."""
    changes = {"platform": "Linux", "processor": "any", "git_commit": None, "git_dirty": None}
    return results.model_copy(update={"environment": results.environment.model_copy(update=changes)})


if __name__ == "__main__":
    PLACE.mkdir(exist_ok=True)
    main()
