"""An attack that writes down every update it is given, so that tests can count work instead of time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

COUNTED = "counted_attack:Counted"

ATTACK = """
import os, time
from gradleak import Attack, Reconstruction, Sentence

class Counted(Attack):
    name = "counted"
    summary = "says one word, and writes down for which update"
    def run(self, updates, model, context):
        answers = []
        for seed in context.seeds:
            with open(os.environ["WORKED"], "a") as stream:
                stream.write(f"{seed}\\n")
            time.sleep(float(os.environ.get("SLOW", 0)))
            context.progress.begin("counted", 1, "answers")
            context.progress.advance(1)
            context.progress.end()
            tokens = model.tokenizer("loan", add_special_tokens=False)["input_ids"]
            sentence = Sentence(text="loan", tokens=tokens, confidence=0.1)
            status = os.environ.get("STATUS") or context.budget.reason
            answers.append(Reconstruction(sentences=[sentence], status=status))
        return answers
"""


def counted_attack(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Make the attack known to this process and its workers; the seeds of the updates it got so far, in order.

    `SLOW` in the environment is the seconds it takes for each, `STATUS` what it says of how it ended.
    """
    (folder / "counted_attack.py").write_text(ATTACK)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    log = folder / "worked"
    log.touch()
    monkeypatch.setenv("WORKED", str(log))
    return lambda: log.read_text().split()
