"""Results without their texts: every word becomes a number, the same word the same number within a trial.

What was recovered, in which order, stays visible; what it says does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gradleak.attacks.base import Reconstruction
from gradleak.audits.results import Results, Trial
from gradleak.models.tasks import Modality
from gradleak.scoring.membership import TrialCandidates
from gradleak.scoring.named import Named

_WORD = re.compile(r"[^\W_]+")


class _Masker:
    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        words = (match.group().lower() for match in _WORD.finditer(text))
        return " ".join(f"w{self._numbers.setdefault(word, len(self._numbers) + 1)}" for word in words)


def redact(results: Results) -> Results:
    """A copy with all texts masked and all token lists emptied; images and the clients' secret are taken out."""
    if results.redacted:
        return results
    trials = [redact_trial(trial, results.scenario.modality) for trial in results.trials]
    return results.model_copy(update={"trials": trials, "redacted": True, "secret": None})


def redact_trial(trial: Trial, modality: Modality) -> Trial:
    """A copy of one trial with its texts masked, or its images taken out; what is masked stays as it is."""
    return _MASKS[modality](trial)


def redact_answer(answer: Reconstruction) -> Reconstruction:
    """The same for what an attack read back from an update whose truth nobody has."""
    return _masked_answer(answer.model_copy(update={"images": []}), _Masker())


def _masked_answer(answer: Reconstruction, mask: _Masker) -> Reconstruction:
    """Notes that are the text of a reason hold no words of others; what else an attack has to say may."""
    sentences = [s.model_copy(update={"text": mask(s.text), "tokens": []}) for s in answer.sentences]
    known = {reason.text for reason in answer.reasons}
    notes = [note if note in known else mask(note) for note in answer.notes]
    return answer.model_copy(update={"sentences": sentences, "bag": {}, "counts": {}, "notes": notes})


def _masked(trial: Trial) -> Trial:
    mask = _Masker()
    pairs = [
        pair.model_copy(update={"truth": mask(pair.truth), "reconstruction": mask(pair.reconstruction)})
        for pair in trial.pairs
    ]
    return trial.model_copy(
        update={
            "pairs": pairs,
            "truth": [mask(text) for text in trial.truth],
            "named": _only_counts(trial.named),
            "control_named": _only_counts(trial.control_named),
            "candidates": _masked_candidates(trial.candidates, mask),
            "reconstruction": _masked_answer(trial.reconstruction, mask),
        }
    )


def _masked_candidates(listed: TrialCandidates | None, mask: _Masker) -> TrialCandidates | None:
    if listed is None:
        return None
    hidden = [each.model_copy(update={"text": mask(each.text)}) for each in listed.candidates]
    return listed.model_copy(update={"candidates": hidden})


def _only_counts(named: Named | None) -> Named | None:
    return None if named is None else named.model_copy(update={"which": [], "wrong": []})


def _without_images(trial: Trial) -> Trial:
    pairs = [pair.model_copy(update={"truth": "", "reconstruction": ""}) for pair in trial.pairs]
    emptied = trial.reconstruction.model_copy(update={"images": []})
    return trial.model_copy(update={"pairs": pairs, "truth": [""] * len(trial.truth), "reconstruction": emptied})


_MASKS: dict[Modality, Callable[[Trial], Trial]] = {"text": _masked, "images": _without_images}
