"""In which order the cells of a frontier are run, so that a short budget tells as much as it can.

Attacks and trainings get half of the time each, the undefended setting first in both. Attacks on the other settings
have the same time each, so that a slow one holds up none; of trainings the first seed of all comes before the second
of some. Settings that look hopeless wait until the others are done: those under which as much is read as with no
defence, and those that another one beats in both, intervals and all. After each seed the dearer half of the rest
waits too. Nothing is left out: with enough time everything is run, and the order changes no result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradleak.audits.results import Results
from gradleak.experiments.frontier.points import AttackScore, cost, score_of, score_so_far
from gradleak.experiments.runner.cell import Cell, EndedCell, Group
from gradleak.experiments.runner.store import Store
from gradleak.experiments.utility import Metric, SettingUtility
from gradleak.scoring.interval import Interval

# Trials from which on a setting can look hopeless.
ENOUGH_TRIALS = 2


@dataclass
class _Setting:
    """What there is of one setting: how far its attacks and trainings are."""

    scores: list[AttackScore | None]
    seeds: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def judged(self) -> list[AttackScore]:
        """The scores of its attacks if all of them have some trials, else none."""
        done = [score for score in self.scores if score is not None and score.trials >= ENOUGH_TRIALS]
        return done if len(done) == len(self.scores) else []

    @property
    def leak(self) -> float:
        """What the best attack read so far, the least known last."""
        return max((score.leak.mean for score in self.scores if score is not None), default=float("inf"))

    def utility(self, number: int) -> SettingUtility:
        return SettingUtility(setting=str(number), defenses=[], status="unfinished", by_seed=self.seeds, metrics={})


class FrontierOrder:
    """Orders what waits by what the folder holds."""

    def __init__(
        self, cells: Sequence[Cell], attacks: int, settings: int, seeds: Sequence[int], measure: str, metric: Metric
    ) -> None:
        """The cells in the order of the plan: every setting's attacks, the floors, every setting's seeds."""
        audits = cells[: attacks * settings]
        floors, trainings = cells[len(audits) :][: len(seeds)], cells[len(audits) + len(seeds) :]
        self._audits = {cell.id: divmod(number, attacks) for number, cell in enumerate(audits)}
        self._trainings = {cell.id: divmod(number, len(seeds)) for number, cell in enumerate(trainings)}
        self._floors = {cell.id for cell in floors}
        self._cells, self._attacks, self._settings, self._seeds = cells, attacks, settings, list(seeds)
        self._measure, self._metric = measure, metric
        self._ended: dict[str, EndedCell] = {}

    def __call__(self, waiting: Sequence[Group], running: Sequence[Group], store: Store) -> list[Group]:
        settings = [_Setting([None] * self._attacks) for _ in range(self._settings)]
        seconds = {"audit": 0.0, "training": 0.0}
        spent: dict[str, float] = {}  # the seconds of audits that are not finished
        for cell in self._cells:
            if cell.id not in self._floors:
                seconds[cell.job.kind] += self._look(cell, store, settings, spent)
        hopeless = self._hopeless(settings)
        behind = self._behind(settings, hopeless)
        busy: list[str] = [group[0].job.kind for group in running]
        # The kind that had less time is next; with several workers one that nobody is at.
        first = sorted(seconds, key=lambda kind: (busy.count(kind), seconds[kind]))
        keys = {group[0].id: self._key(group[0], settings, hopeless, behind, spent) for group in waiting}
        ranked = sorted(waiting, key=lambda group: keys[group[0].id])
        ordered = [group for group in ranked if group[0].id in self._floors]
        for late in (False, True):
            kinds = [
                [
                    group
                    for group in ranked
                    if (group[0].job.kind, keys[group[0].id][0]) == (kind, late) and group[0].id not in self._floors
                ]
                for kind in first
            ]
            ordered += _alternate(kinds)
        return ordered

    def _look(self, cell: Cell, store: Store, settings: Sequence[_Setting], spent: dict[str, float]) -> float:
        """Take what there is of a cell into its setting; the seconds that went into it."""
        if cell.id not in self._ended and (end := store.read(cell.id, EndedCell)) is not None:
            self._ended[cell.id] = end
        ended = self._ended.get(cell.id)
        part = store.part(cell.id) if ended is None else None
        if cell.id in self._audits:
            setting, attack = self._audits[cell.id]
            if ended is not None:
                settings[setting].scores[attack] = _score(ended.results, self._measure)
            elif part is not None:
                settings[setting].scores[attack] = score_so_far(part.trials, cell.job.spec.trials, self._measure)
                spent[cell.id] = part.seconds
        elif ended is not None and ended.learned is not None:
            setting, seed = self._trainings[cell.id]
            settings[setting].seeds[self._seeds[seed]] = ended.learned.metrics
        begun = ended or part
        return 0.0 if begun is None else begun.seconds

    def _costs(self, settings: Sequence[_Setting]) -> list[Interval | None]:
        plain = settings[0].utility(0)
        return [cost(each.utility(number), plain, self._metric) for number, each in enumerate(settings)]

    def _hopeless(self, settings: Sequence[_Setting]) -> set[int]:
        """Settings that will hardly be advised: as much is read as with none, or another is better in both."""
        plain, costs = settings[0].judged, self._costs(settings)
        if not plain:
            return set()
        best = max(plain, key=lambda score: score.leak.mean).leak
        return {
            number
            for number, each in enumerate(settings)
            if number
            and each.judged
            and (any(_as_plain(score, best) for score in each.judged) or _beaten(number, settings, costs))
        }

    def _behind(self, settings: Sequence[_Setting], hopeless: set[int]) -> set[int]:
        """The dearer half of those that have a seed, the dearer three quarters of those that have two, and so on."""
        left = [
            (price.mean, number)
            for number, price in enumerate(self._costs(settings))
            if number and number not in hopeless and price is not None
        ]
        ordered = [number for _, number in sorted(left)]
        return {
            number for place, number in enumerate(ordered) if place >= len(ordered) / 2 ** len(settings[number].seeds)
        }

    def _key(
        self,
        cell: Cell,
        settings: Sequence[_Setting],
        hopeless: set[int],
        behind: set[int],
        spent: Mapping[str, float],
    ) -> tuple[bool, bool, int, bool, float, int]:
        """The undefended setting comes first, for all others are compared with it; seed by seed in trainings."""
        place = next(number for number, each in enumerate(self._cells) if each.id == cell.id)
        if cell.id in self._audits:
            setting, _ = self._audits[cell.id]
            return setting in hopeless, False, 0, setting > 0, spent.get(cell.id, 0.0), place
        if cell.id in self._floors:
            return False, False, 0, False, 0.0, place
        setting, seed = self._trainings[cell.id]
        return setting in hopeless, setting in behind, seed, setting > 0, settings[setting].leak, place


def _score(results: Results | None, measure: str) -> AttackScore | None:
    return None if results is None or not results.trials else score_of(results, measure)


def _as_plain(score: AttackScore, plain: Interval) -> bool:
    """Whether an attack reads clearly more than guessing, and about as much as with no defence."""
    same = score.leak.mean >= plain.low and score.leak.high >= plain.mean
    return score.leak.low > score.control.high and same


def _beaten(number: int, settings: Sequence[_Setting], costs: Sequence[Interval | None]) -> bool:
    """Whether another setting clearly leaks less and clearly costs less."""
    own = costs[number]
    if own is None:
        return False
    least = max(score.leak.low for score in settings[number].judged)
    return any(
        price is not None
        and price.high < own.low
        and bool(each.judged)
        and max(score.leak.high for score in each.judged) < least
        for each, price in zip(settings[1:], costs[1:], strict=True)
    )


def _alternate(kinds: Sequence[Sequence[Group]]) -> list[Group]:
    """One of each kind in turn, until all are there."""
    longest = max((len(kind) for kind in kinds), default=0)
    return [kind[place] for place in range(longest) for kind in kinds if place < len(kind)]
