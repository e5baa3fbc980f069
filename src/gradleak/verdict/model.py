"""The form of a verdict, in `results.json` and in `verdict.json`. `docs/verdict.md` explains it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.core.files import write_text
from gradleak.core.show import data_frame, html_table
from gradleak.core.text import counted
from gradleak.scoring.interval import Interval
from gradleak.scoring.membership import Confirmed
from gradleak.scoring.named import NamedCounts
from gradleak.scoring.pieces import Pieces
from gradleak.scoring.scale import Scale, scale_by

if TYPE_CHECKING:
    import pandas

FILE = "verdict.json"

Level = Literal["critical", "high", "moderate", "unfinished", "unclear", "not shown"]
# The worst first. What is not finished or not clear stands above what was tried to its end in vain.
LEVELS: tuple[Level, ...] = ("critical", "high", "moderate", "unfinished", "unclear", "not shown")

ObstacleKind = Literal[
    "budget", "tensors-missing", "rank-limit", "noise", "coarse-values", "local-steps", "dropout", "not-told",
    "tokens-only", "tokens-unknown", "defended", "no-gap", "search",
]  # fmt: skip


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Obstacle(_Model):
    """Something that kept an attack from reading all of some trials, as far as the facts tell."""

    kind: ObstacleKind
    trials: int = Field(description="trials of this attack in which it stood in the way")
    numbers: dict[str, float] = Field(default_factory=dict, description="the figures of its text, means over trials")
    text: str


class Leaked(_Model):
    """What an attack read back, counted."""

    sentences: int = Field(description="true sentences, or images")
    whole: int = Field(description="sentences that came back token by token, or close images")
    certified: int = Field(description="those of them that the update itself proves")
    pieces: Pieces | None = Field(description="names and numbers; null where they were not counted")
    guessed: Pieces | None = Field(
        default=None, description="the same of all draws of the control, which are several a trial; null if not kept"
    )


class TokensRead(_Model):
    """The tokens that an attack named, without their order: a leak of its own."""

    level: Level
    recall: Interval = Field(description="percent of the batch's tokens it named")
    precision: Interval = Field(description="percent of the tokens it named that were there")
    control_recall: Interval | None = Field(
        description="the same of as many of the commonest tokens; null if not kept"
    )
    control_precision: Interval | None
    named: NamedCounts | None = Field(description="tokens, words, names and numbers; null if not kept")
    guessed: NamedCounts | None = Field(description="the same of the commonest tokens")


class AttackVerdict(_Model):
    """One attack on one scenario."""

    attack: str
    trials: int
    unfinished: int = Field(description="trials that the budget or an interruption ended; they prove no absence")
    measure: str = Field(default="rougeL", description="the metric of leak and control: rougeL, of images psnr")
    leak: Interval
    control: Interval = Field(description="the same of guessing without the update")
    whole: Interval = Field(description="percent of the sentences that came back whole, or images close, by trial")
    control_whole: float = Field(description="the same of guessing, its mean")
    tokens: TokensRead | None = Field(description="null if it looks for none")
    leaked: Leaked
    obstacles: list[Obstacle] = Field(description="why it did not read more; empty if it read everything")

    @property
    def scale(self) -> Scale:
        return scale_by(self.measure)


class CandidatesVerdict(_Model):
    """What a server that has candidates confirms: the floor, where nothing can be read."""

    level: Level
    confirmed: Confirmed


class Ceiling(_Model):
    """What any attacker can achieve at most under differential privacy, however it attacks."""

    scope: Literal["update", "training"] = Field(
        description="what the attacker sees: this update, or all of a training"
    )
    guess: float = Field(description="the chance of the best guess without any update")
    success: float = Field(description="the chance that no attacker exceeds")
    times: int = Field(description="noisy steps: those that an example is in, or those of the training")


class ScenarioVerdict(_Model):
    """Everything that was tried on one scenario, and what it came to."""

    scenario: str
    defense: str
    level: Level
    headline: str
    strongest: str = Field(description="the attack with the highest leak")
    attacks: list[AttackVerdict] = Field(description="every attack that was tried, the strongest first")
    candidates: CandidatesVerdict | None = Field(default=None, description="null if no audit asked for candidates")
    ceilings: list[Ceiling] = Field(
        default_factory=list, description="bounds from above; empty without differential privacy"
    )
    not_tried: list[str] = Field(
        default_factory=list, description="what none of these audits tried, and how to try it"
    )
    missing: list[str] = Field(default_factory=list, description="attempts on it that have no result")
    client: list[str] = Field(
        default_factory=list, description="the client's rule, and what was undone of its optimiser or could not be"
    )
    change: str | None = Field(default=None, description="what measured change would have helped, if one would")
    untried: list[str] = Field(
        default_factory=list, description="changes of the client that were not measured, with commands that do"
    )


class ReadCounts(_Model):
    """What an attack gave back, whether right or wrong."""

    certified: int = Field(description="sentences that the update itself proves")
    guessed: int = Field(description="sentences or images that nothing proves")
    tokens: int = Field(description="tokens that the attack named")
    unfinished: bool = Field(description="whether it was cut short")


class Unchecked(ReadCounts):
    """What an attack read of a recorded update without a truth: what is proved is known, the rest may be wrong."""

    scenario: str
    defense: str
    attack: str
    level: Level
    headline: str
    client: list[str] = Field(
        default_factory=list, description="the client's rule, and what was undone of its optimiser or could not be"
    )
    obstacles: list[str] = Field(default_factory=list, description="why it did not read more, as the attack says it")


class Verdict(_Model):
    """All scenarios of a folder, the worst first."""

    schema_version: Literal[1] = 1
    created: str
    level: Level
    scenarios: list[ScenarioVerdict]
    unchecked: list[Unchecked] = Field(default_factory=list, description="recorded updates without a truth")
    missing: list[str] = Field(
        default_factory=list, description="attempts that have no result: they count for nothing"
    )
    caveat: str

    def save(self, folder: Path) -> Path:
        """Write `verdict.json`, readable by its owner only."""
        return write_text(folder / FILE, self.model_dump_json(indent=2) + "\n")

    @property
    def headline(self) -> str:
        """The sentence of the one scenario, or how many there are of each level and that of the worst."""
        every: list[ScenarioVerdict | Unchecked] = [*self.scenarios, *self.unchecked]
        judged = sorted(every, key=lambda each: LEVELS.index(each.level))
        if len(judged) < 2:
            return judged[0].headline if judged else "Nothing was measured."
        counts = Counter(each.level for each in judged)
        numbers = ", ".join(f"{counts[level]} {level}" for level in LEVELS if counts[level])
        return f"{counted(len(judged), 'scenario')}: {numbers}. The worst: {judged[0].headline}"

    def to_pandas(self) -> pandas.DataFrame:
        """One line per scenario and attack: its level, its leak beside guessing, and what came back whole."""
        unchecked = [
            each.model_dump(include={"scenario", "defense", "level", "attack", "certified"})
            | {"trials": 1, "unfinished": int(each.unfinished)}
            for each in self.unchecked
        ]
        return data_frame(
            [
                *(
                    {
                        "scenario": scenario.scenario,
                        "defense": scenario.defense,
                        "level": scenario.level,
                        "attack": attack.attack,
                        "trials": attack.trials,
                        "unfinished": attack.unfinished,
                        "measure": attack.measure,
                        **{f"leak_{name}": value for name, value in attack.leak.model_dump().items()},
                        **{f"control_{name}": value for name, value in attack.control.model_dump().items()},
                        "whole": attack.leaked.whole,
                        "examples": attack.leaked.sentences,
                        "certified": attack.leaked.certified,
                    }
                    for scenario in self.scenarios
                    for attack in scenario.attacks
                ),
                *unchecked,
            ]
        )

    def __repr__(self) -> str:
        return f"Verdict({self.headline})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        lines = [
            [
                scenario.scenario, scenario.defense, scenario.level, attack.attack,
                attack.scale.labelled(attack.leak), attack.scale.format(attack.control),
                f"{attack.leaked.whole} of {attack.leaked.sentences}",
            ]
            for scenario in self.scenarios
            for attack in scenario.attacks
        ] + [
            [each.scenario, each.defense, each.level, each.attack, "no truth", "–", f"{each.certified} certified"]
            for each in self.unchecked
        ]  # fmt: skip
        return html_table(
            self.headline, ["scenario", "defence", "level", "attack", "leak", "guessing", "came back whole"], lines
        )
