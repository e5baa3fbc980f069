"""The client rule of a training that left files: from options, then from what lies beside the files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradleak.core.errors import GradleakError
from gradleak.core.parameters import validated
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.found_settings import TRAINER, FoundSettings
from gradleak.updates.plausible import check_steps
from gradleak.updates.schedules import schedule_of

# Settings that options have other names for.
OPTIONS = {"wd": "weight-decay", "mode": "dropout"}
RULES = {"sgd": "fedavg", "adam": "adam", "adamw": "adamw"}
SPLIT = "how the steps shared the sentences out is not known; each is taken as one over all of them"
# What files say that is no setting of a rule.
BESIDE = ("optimizer", "total", "passes")


@dataclass(frozen=True)
class BuiltRule:
    """A rule, what it says only roughly, and what was read where; `exact` if it is the training's own rule."""

    rule: ClientRule
    notes: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    exact: bool = True


@dataclass(frozen=True)
class RuleOptions:
    """A client's rule as the command line gives it: as one text, or setting by setting (`settings`).

    `settings` are those of a `ClientRule`, and `optimizer`. `sentences` is how many it trained on, if that is known.
    """

    client: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    sentences: int | None = None

    def __post_init__(self) -> None:
        given = [name for name, value in self.settings.items() if value is not None]
        if self.client is not None and given:
            option = OPTIONS.get(given[0], given[0])
            raise GradleakError(f"--client says all of the rule: give it or --{option}, not both")
        optimizer = self.settings.get("optimizer")
        if optimizer is not None and not re.fullmatch(r"[\w.+-]{1,60}", optimizer):
            raise GradleakError(
                f"{optimizer[:60]!r} is no optimizer's name: use letters, digits, '_', '-', '+' and '.'"
            )

    @property
    def asks_for_files(self) -> bool:
        """Whether files may say something: a rule in one text says all."""
        return self.client is None

    def rule(self, found: Sequence[FoundSettings] = (), *, dropout: bool = False) -> BuiltRule:
        """The rule; options win over files, and earlier files over later ones. `dropout`: the model has some."""
        if self.client is not None:
            rule = ClientRule.parse(self.client)
            if not rule.local:
                raise GradleakError(f"--client {rule.name}: it sends a gradient (--gradient), not weights")
            check_steps(rule, rule.epochs if "epochs" in rule.model_fields_set else None, self.sentences)
            return BuiltRule(rule)
        given = {name: value for name, value in self.settings.items() if value is not None}
        values, read = _merged(given, found)
        if any(each.trainer for each in found):
            values = {**TRAINER, **({"mode": "train"} if dropout else {}), **values}
        notes = [*(note for each in found for note in each.notes), *read]
        return self._built(values, notes, read)

    def _built(self, values: dict[str, Any], notes: list[str], read: list[str]) -> BuiltRule:
        beside = {name: values.pop(name, None) for name in BESIDE}
        optimizer = str(beside["optimizer"] or "sgd")
        name = RULES.get(optimizer.lower())
        notes += optimizer_note(optimizer) if name is None else []
        if "lr" not in values:
            raise GradleakError("the step size of the training is not known: give --lr, or its rule with --client")
        if "steps" not in values and "epochs" not in values:
            raise GradleakError("give --steps or --epochs: how long the training took is not known")
        if not values.get("clip"):
            values.pop("clip", None)
        for setting in ("wd", "decay") if name is None else ():
            values.pop(setting, None)
        for setting in ("betas", "eps") if name in (None, "fedavg") else ("momentum",):
            values.pop(setting, None)
        if not values.get("wd"):
            values.pop("decay", None)
        passes = values.get("epochs", beside["passes"])
        if "steps" in values:
            values.pop("epochs", None)
        rule = validated(ClientRule, {"name": name or "fedavg", **self._divided(values, notes)}, "the client's rule")
        check_steps(rule, passes, self.sentences)
        return self._scheduled(rule, beside["total"], notes, read, exact=name is not None)

    def _divided(self, values: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        """The same settings with a batch size: without one each step is taken as one over all sentences."""
        if "batch" in values:
            return dict(values)
        steps = values.get("steps", values.get("epochs"))
        if steps != 1 and self.sentences != 1:
            notes.append(SPLIT)
        if self.sentences is None and "steps" in values:
            return {**values, "steps": None, "epochs": steps, "batch": 1}  # a pass over whatever there was
        return {**values, "batch": self.sentences or 1}

    def _scheduled(
        self, rule: ClientRule, total: int | None, notes: list[str], read: list[str], *, exact: bool
    ) -> BuiltRule:
        """The rule in whole passes if it has some, and with the part of a longer schedule that its steps were."""
        if rule.steps is not None and total is not None and total > rule.steps and rule.schedule != "constant":
            rates = rule.model_copy(update={"steps": total}).rates(1)[: rule.steps]
            settings, rough = schedule_of(rates, rule.lr, rule.warmup)
            rule = validated(ClientRule, {**rule.model_dump(), **settings}, "the client's rule")
            notes += rough
            exact = exact and not rough
        return BuiltRule(in_passes(rule, self.sentences), tuple(notes), tuple(read), exact)


def gradient_rule(options: RuleOptions) -> ClientRule:
    """The rule of a client that sent a gradient; settings of local steps are an error."""
    if options.client is not None:
        rule = ClientRule.parse(options.client)
        if rule.local:
            raise GradleakError(f"--client {rule.name}: it sends weights (--after), not a gradient")
        return rule
    given = {name: value for name, value in options.settings.items() if value is not None}
    local = next((name for name in given if name not in ("mode", "clip")), None)
    if local is not None:
        option = OPTIONS.get(local, local)
        raise GradleakError(f"--{option} belongs to weights before and after (--after), not to a gradient")
    return validated(ClientRule, {name: value for name, value in given.items() if value}, "the client's rule")


def in_passes(rule: ClientRule, sentences: int | None) -> ClientRule:
    """The same rule counted in passes over the sentences, where its steps are whole ones.

    >>> str(in_passes(ClientRule.parse("adamw:steps=4,batch=2,lr=0.1"), 4))
    'adamw:epochs=2,batch=2,lr=0.1'
    """
    if rule.steps is None or sentences is None:
        return rule
    each = math.ceil(math.ceil(sentences / rule.batch) / rule.accumulate)
    if rule.steps % each:
        return rule
    return rule.model_copy(update={"steps": None, "epochs": rule.steps // each})


def optimizer_note(name: str) -> list[str]:
    """What to note of training by an optimiser that no rule describes.

    >>> optimizer_note("lion")
    ['trained with lion, not with plain SGD: the moved weights are only roughly a sum of gradients']
    """
    return [f"trained with {name}, not with plain SGD: the moved weights are only roughly a sum of gradients"]


def _merged(given: Mapping[str, Any], found: Sequence[FoundSettings]) -> tuple[dict[str, Any], list[str]]:
    """All settings, and a line on what each file said that counts."""
    values, read = dict(given), []
    for each in found:
        new = {
            name: value for name, value in each.settings.items() if name not in values and not _instead(name, values)
        }
        if new:
            said = ", ".join(f"{name}={_text(value)}" for name, value in new.items())
            read.append(f"read from {each.file.name}: {said}")
        values |= new
    return values, read


def _instead(name: str, values: Mapping[str, Any]) -> bool:
    """Whether a setting is one that others already stand in the place of."""
    return (name == "epochs" and "steps" in values) or (name == "steps" and "epochs" in values)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "/".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
