"""What a cell can be asked to do: audit a model, or train it under a defence to see what that costs."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.attacks import attacks_for
from gradleak.audits.modality import MODALITIES
from gradleak.audits.spec import AuditSpec
from gradleak.audits.text import TEXT
from gradleak.core.identity import digest_files
from gradleak.data.corpora import read_rows
from gradleak.defenses import parse_defenses
from gradleak.defenses.chains import NONE, canonical, label
from gradleak.scoring.metrics import METRICS
from gradleak.training.rounds import RoundSettings
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.manifest import KNOWABLE

# Settings that decide nothing by themselves: models, data and secrets count by their hashes.
_ASIDE = {
    "model", "task", "num_labels", "lora", "data", "text_column", "label_column", "secret", "budget", "memory", "out",
}  # fmt: skip
# Those that there were when seeds were first derived.
_FIRST = {
    "attack", "batch_size", "client", "defenses", "device", "known", "max_tokens", "observe", "options", "redact",
    "seed", "trials", "window",
}  # fmt: skip


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class InverterSpec(_Model):
    """What an attack's network is trained on first, and how: the settings of `gradleak train-inverter`."""

    aux: str
    pseudo: bool = True
    size: int | None = Field(None, ge=2)
    other: str | None = None
    share: float = Field(1.0, ge=0, le=1)
    network: dict[str, Any] = {}
    training: dict[str, Any] = {}

    def decisive(self) -> dict[str, Any]:
        """Its settings, with the texts by what they are."""
        texts = {name: _digest_texts(getattr(self, name)) for name in ("aux", "other")}
        return {**self.model_dump(mode="json"), **texts}


class Learned(_Model):
    """How good a model became, and how good one is that always says the commonest class."""

    metrics: dict[str, float]
    majority: dict[str, float] = Field(default={}, description="empty for language models")
    seconds: float


class AuditJob(_Model):
    """An audit; with an inverter, the network that its attack needs is trained before it, or taken from the cache."""

    kind: Literal["audit"] = "audit"
    spec: AuditSpec
    inverter: InverterSpec | None = None

    def decisive(self, modality: str) -> dict[str, Any]:
        """The settings that decide the result, the same for every way to write them.

        Seeds follow from this form, so it stays as it is: a setting that was added later counts only where it is set.
        """
        spec = self.spec
        values = {
            **spec.model_dump(mode="json", include=_FIRST),
            **spec.model_dump(mode="json", exclude=_ASIDE | _FIRST | {"metrics"}, exclude_defaults=True),
            "options": self.options(modality),
            "client": str(_rule(spec.client)),
            "defenses": _chain(spec.defenses),
            "device": spec.device.partition(":")[0],
            "known": [name for name in KNOWABLE if name in spec.known],
            "entities": "nerr" in spec.metrics,  # how this metric was first asked for
        }
        if others := [name for name in spec.metrics if name != "nerr"]:
            values["metrics"] = others
        if spec.chat_template is not None:
            values["chat_template"] = digest_files(spec.chat_template)
        if self.inverter is not None:
            values["inverter"] = self.inverter.decisive()
        return values

    def options(self, modality: str) -> dict[str, Any]:
        """The attack's options that were set, in their own types; files that they name count by what is in them."""
        text = json.dumps(self.spec.options, sort_keys=True, default=str)
        return _options(modality, self.spec.attack or "", text)

    def modules(self, modality: str) -> set[str]:
        """Where the code that runs it begins."""
        spec = self.spec
        return {
            "gradleak.audits.run",
            type(MODALITIES.get(modality)).__module__,
            attacks_for(modality).get(spec.attack or "").__module__,
            *(type(defense).__module__ for defense in parse_defenses(spec.defenses)),
            *(METRICS.get(name).function.__module__ for name in spec.metrics),
            *(("gradleak.attacks.inversion.train_text",) if self.inverter is not None else ()),
        }

    @property
    def name(self) -> str:
        """What people look for among files; models and data go by their hashes."""
        spec = self.spec
        chain = " ".join(_chain(spec.defenses)) or NONE
        many = "" if spec.aggregate is None else f"x{spec.aggregate}"
        return f"{spec.attack} b{spec.batch_size}{many} {_rule(spec.client)} {chain} {spec.observe} s{spec.seed}"

    @property
    def size(self) -> tuple[int, int]:
        """How much work it is, roughly: repetitions, and how large each is."""
        return self.spec.trials, self.spec.examples

    @property
    def family(self) -> str:
        """Jobs of one name take about as long."""
        return self.spec.attack_label

    def __str__(self) -> str:
        """
        >>> str(AuditJob(spec=AuditSpec(attack="lamp-cos", options={"steps": 30}, batch_size=4, seed=1)))
        'minilm builtin b4 fedsgd none all lamp-cos steps=30 s1'
        """
        spec = self.spec
        names = [Path(spec.model).name, *([spec.lora] if spec.lora else []), Path(spec.data).name]
        names += [f"b{spec.batch_size}", spec.client]
        return " ".join([*names, label(spec.defenses), spec.observe, self.family, f"s{spec.seed}"])


class TrainingJob(_Model):
    """A simulated federated training under the defences of a spec, or the model as it is."""

    kind: Literal["training"] = "training"
    spec: AuditSpec = Field(description="model, data, client, defences and seed; the rest is for audits")
    rounds: RoundSettings
    trained: bool = Field(True, description="false: the model before any training, as a floor")

    def decisive(self, modality: str) -> dict[str, Any]:
        return {
            **self.rounds.model_dump(exclude={"seeds"}, exclude_none=True),
            "client": str(_rule(self.spec.client)),
            "defenses": _chain(self.spec.defenses) if self.trained else None,
            "device": self.spec.device.partition(":")[0],
            "seed": self.spec.seed,
            **(
                {"chat_template": digest_files(template)} if (template := self.spec.chat_template) is not None else {}
            ),
        }

    def modules(self, modality: str) -> set[str]:
        defenses = {type(defense).__module__ for defense in parse_defenses(self.spec.defenses)}
        return {"gradleak.training.rounds", MODALITIES.get(modality).training, *defenses}

    @property
    def name(self) -> str:
        return f"{self.family} s{self.spec.seed}"

    @property
    def size(self) -> tuple[int, int]:
        return self.rounds.rounds, self.rounds.rows_per_round

    @property
    def family(self) -> str:
        return f"training {label(self.spec.defenses)}" if self.trained else "untrained"

    def __str__(self) -> str:
        return f"{Path(self.spec.model).name} {Path(self.spec.data).name} {self.name}"


Job = AuditJob | TrainingJob


@functools.lru_cache(maxsize=64)
def _digest_texts(source: str | None) -> str | None:
    return None if source is None else TEXT.digest(read_rows(source))


_rule = functools.lru_cache(maxsize=1024)(ClientRule.parse)


@functools.lru_cache(maxsize=1024)
def _chain(chain: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(canonical(chain))


@functools.lru_cache(maxsize=1024)
def _options(modality: str, attack: str, text: str) -> dict[str, Any]:
    options = attacks_for(modality).get(attack).from_settings(json.loads(text)).options
    values = options.model_dump(mode="json", include=options.model_fields_set)
    return {name: digest_files(value) if isinstance(value, str) else value for name, value in values.items()}
