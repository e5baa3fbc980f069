"""Invented audits: what attacks read, given by a few numbers."""

from __future__ import annotations

from sample import sample_results

from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.attacks.reasons import reason_fields
from gradleak.audits.results import AttackInfo, Results, Trial
from gradleak.scoring.interval import Interval, mean_interval
from gradleak.scoring.pieces import Count, Pieces
from gradleak.scoring.score import Pair
from gradleak.verdict.model import AttackVerdict, Leaked, TokensRead
from gradleak.verdict.rule import token_level

METRICS = ("rouge1", "rouge2", "rougeL", "token_accuracy")


def audit(leaks, *, attack="auto", options=None, control=5.0, seed=0, scenario=None, **facts) -> Results:
    """One audit, a trial of one sentence for each leak; a leak of 100 is a sentence read whole."""
    base = sample_results()
    trials = [trial(i, leak, control + i % 2, seed=1000 * seed + i, **facts) for i, leak in enumerate(leaks)]
    settings = {"seed": seed, "trials": len(trials), **(scenario or {})}
    return base.model_copy(
        update={
            "scenario": base.scenario.model_copy(update=settings),
            "attack": AttackInfo(name=attack, options=options or {}),
            "status": trials[-1].status,
            "trials": trials,
            "summary": {name: mean_interval([t.scores[name] for t in trials]) for name in trials[0].scores},
            "control": {name: mean_interval([t.control_scores[name] for t in trials]) for name in trials[0].scores},
        }
    )


def trial(index, leak, control, *, seed, reasons=(), status="completed", certified=False, bag=None, **facts) -> Trial:
    scores = dict.fromkeys(METRICS, float(leak)) | {"exact_match": 100.0 * (leak == 100)}
    truth, guess = f"Sentence {seed} names Rosa.", f"read {leak} of {seed}"
    pieces = Pieces(names=Count(found=int(leak > 50), total=1), numbers=Count(found=1, total=1), names_by="capitals")
    guessed = Pieces(names=Count(found=1, total=10), numbers=Count(found=0, total=10), names_by="capitals")
    return Trial(
        index=index,
        seed=seed,
        status=status,
        truth=[truth],
        labels=[1],
        reconstruction=Reconstruction(
            sentences=[Sentence(text=guess, tokens=[1], confidence=0.5, certified=certified)],
            **reason_fields(reasons),
        ),
        pairs=[
            Pair(truth=truth, reconstruction=guess, confidence=0.5, certified=certified, scores=scores, pieces=pieces)
        ],
        scores=scores,
        control_scores=dict.fromkeys(METRICS, float(control)) | {"exact_match": 0.0},
        control_pieces=guessed,
        found=bag or {},
        seconds=1.0,
        peak_memory_mb=None,
        **facts,
    )


def interval(mean, low=None, high=None) -> Interval:
    return Interval(mean=mean, low=mean if low is None else low, high=mean if high is None else high)


def tokens_read(recall, precision, trials=20, unfinished=0, guessing=None):
    """Tokens that an attack named, given as percentages."""
    both = None if guessing is None else (interval(*guessing[0]), interval(*guessing[1]))
    return TokensRead(
        level=token_level(interval(recall), interval(precision), both, trials, unfinished), recall=interval(recall),
        precision=interval(precision), control_recall=both and both[0], control_precision=both and both[1],
        named=None, guessed=None,
    )  # fmt: skip


def attack_verdict(
    leak, control=(6, 4, 8), *, trials=20, whole=0.0, guessed=0.0, unfinished=0, tokens=None, measure="rougeL"
):
    """What one attack came to, given as intervals."""
    return AttackVerdict(
        attack="auto", measure=measure, trials=trials, unfinished=unfinished,
        leak=interval(*leak), control=interval(*control),
        whole=interval(whole), control_whole=guessed, tokens=tokens and tokens_read(*tokens, trials, unfinished),
        leaked=Leaked(sentences=trials, whole=round(trials * whole / 100), certified=0, pieces=None), obstacles=[],
    )  # fmt: skip
