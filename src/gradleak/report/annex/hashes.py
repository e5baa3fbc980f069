"""Hashes of the files that a record is made from, by which a reviewer knows them again."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gradleak.audits.dp.result import FILE as DP_CHECK
from gradleak.audits.results import FILE
from gradleak.experiments.runner.store import CELLS, PLAN
from gradleak.verdict.model import FILE as VERDICT

# More than these are hashed together.
LISTED = 20


def file_hashes(folder: Path) -> list[tuple[str, str]]:
    """Every file of results below a folder with its SHA-256; of many, one hash over the list of all."""
    if not folder.is_dir():
        return []
    if (folder / PLAN).exists():
        files = [folder / PLAN, *sorted((folder / CELLS).glob("*.json"))]
    else:
        files = [folder / FILE] if (folder / FILE).exists() else sorted(folder.rglob(FILE))
    files += [place for name in (VERDICT, DP_CHECK) if (place := folder / name).exists()]
    hashes = [(path.relative_to(folder).as_posix(), _sha256(path)) for path in files]
    if len(hashes) <= LISTED:
        return hashes
    listing = "".join(f"{value}  {name}\n" for name, value in hashes)  # what `sha256sum` prints of these files
    return [(f"list of {len(hashes)} files, as sha256sum prints it", hashlib.sha256(listing.encode()).hexdigest())]


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
