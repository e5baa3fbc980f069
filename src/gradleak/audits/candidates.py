"""Candidates looked for in an update folder."""

from __future__ import annotations

from pathlib import Path

from gradleak.attacks.contains.result import Containment
from gradleak.attacks.contains.run import contains
from gradleak.audits.run import load_target
from gradleak.audits.spec import AuditSpec
from gradleak.core.budget import Budget
from gradleak.core.memory import within
from gradleak.core.privacy import is_redacting
from gradleak.core.progress import SILENT, Progress
from gradleak.data.corpora import read_rows
from gradleak.models.text import text_target
from gradleak.updates.update import load_update


def look_for(
    update: Path,
    spec: AuditSpec,
    texts: Path,
    public: Path | None,
    references: int,
    budget: Budget,
    progress: Progress = SILENT,
) -> Containment:
    """Which texts of a file an update confirms, beside public texts of another file, or of WikiText-2."""
    with within(spec.memory_limit):
        return _look_for(update, spec, texts, public, references, budget, progress)


def _look_for(
    update: Path,
    spec: AuditSpec,
    texts: Path,
    public: Path | None,
    references: int,
    budget: Budget,
    progress: Progress,
) -> Containment:
    progress.begin("reading texts", 0)  # before the model: a file that is wrong is an error at once
    candidates = [row.text for row in read_rows(texts)]
    others = None if public is None else [row.text for row in read_rows(public)]
    model = text_target(load_target(spec, progress), "contains")
    progress.begin("reading the update", 0)
    shared = load_update(update, model)
    progress.end()
    model.announce(progress)
    found = contains(
        shared, model, candidates, public=others, references=references, seed=spec.seed, budget=budget,
        progress=progress,
    )  # fmt: skip
    return found.masked() if is_redacting() else found
