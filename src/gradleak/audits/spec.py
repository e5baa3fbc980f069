"""Everything an audit can be asked, each setting declared once.

The options of the command line, the keys of YAML files, the keywords of `gradleak.audit` and the cells of experiments
all come from the fields of `AuditSpec`. To add a setting, add a field and use it. Nothing imported here loads torch,
so that the command line can list its options at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from gradleak.audits.threats import find_threat, threat_label
from gradleak.core.budget import Budget, parse_duration
from gradleak.core.errors import GradleakError
from gradleak.core.memory import parse_memory
from gradleak.core.parameters import validated
from gradleak.core.registry import suggest
from gradleak.core.yaml_files import read_yaml
from gradleak.data.published import Published
from gradleak.models.families import FAMILIES
from gradleak.models.lora_text import LoraSettings
from gradleak.models.selection_text import parse_selection
from gradleak.models.tasks import Task
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.manifest import KNOWABLE

# A task as users write it: `lm` is short for `causal-lm`.
TaskName = Annotated[Task, BeforeValidator(lambda name: "causal-lm" if name == "lm" else name)]

# Which commands take a setting: those that need its group.
Group = Literal["model", "loading", "data", "drawing", "client", "attack", "scoring", "running"]


def setting(default: Any, help_text: str, group: Group, *, flag: str | None = None, **more: Any) -> Any:
    """A field of the spec. `flag` is its name on the command line where that is not the field's.

    `column=False` keeps it out of the tables of sweeps; the rest are pydantic's limits.
    """
    extra = {"group": group, "flag": flag, "column": more.pop("column", True)}
    return Field(default, description=help_text, json_schema_extra=extra, **more)


class AuditSpec(BaseModel):
    """One audit: which model and data, what the client does, what the attacker sees, and how it attacks.

    >>> spec = AuditSpec(model="minilm", trials=10, known="batch_size,labels")
    >>> spec.known, spec.attack
    (('batch_size', 'labels'), None)
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
    # Without them a command that names the same model and data may read others of it.
    TAKEN_AS: ClassVar[tuple[str, ...]] = (
        "num_labels", "family", "text_column", "label_column", "chat_template", "max_tokens", "window", "draw",
    )  # fmt: skip

    model: str = setting("minilm", "built-in name, Hugging Face folder or hub id", "model")
    task: TaskName | None = setting(
        None,
        "classification, causal-lm (lm for short), or another of docs/tasks.md; default: by the model",
        "loading",
    )
    num_labels: int | None = setting(None, "classes of a newly drawn head", "loading", ge=2)
    lora: str | None = setting(
        None, "fresh adapters to train instead of the weights: r=16,alpha=32,targets=query+value, or flowertune",
        "loading",
    )  # fmt: skip
    family: str | None = setting(
        None, "your own declaration of where the model keeps its parts, as module:NAME; default: listed, or found",
        "loading", column=False,
    )  # fmt: skip
    data: str = setting(
        "builtin",
        "a .txt, .csv, .tsv or .jsonl file, an .npz of images, builtin, cifar10 (images, fetched), or a corpus as "
        "cola@FOLDER",
        "data",
    )
    text_column: str | None = setting(None, "column of the text: name or 1-based number", "data", column=False)
    label_column: str | None = setting(None, "column of the label: name or 1-based number", "data", column=False)
    chat_template: str | None = setting(
        None,
        "what makes texts of instructions and conversations: auto (the tokenizer's own), alpaca, chatml, none, or a "
        "file of Jinja",
        "data",
    )
    batch_size: int = setting(1, "sentences, or images, in a client's batch", "client", ge=1)
    aggregate: int | None = setting(
        None,
        "clients, each with a batch, of whose updates the attacker sees only the mean (secure aggregation); default: "
        "one client's own update",
        "client",
        column=False,
        ge=1,
    )
    client: str = setting(
        "fedsgd", "fedsgd, fedavg, adam or adamw:epochs=1,batch=1,lr=5e-5, or one of `gradleak clients`", "client"
    )
    defenses: tuple[str, ...] = setting(
        (), "what the client does to its update, such as noise:sigma=0.01; repeat for a chain", "client",
        flag="--defense",
    )  # fmt: skip
    threat: str | None = setting(
        None,
        "a threat model by name, one of `gradleak threats`; it sets known, observe and candidates where you do not",
        "client", column=False,
    )  # fmt: skip
    observe: str = setting(
        "all", "the part of the model the attacker sees: transformer, layer:6, layer:6.query, head, ...", "client"
    )
    secret: str | None = setting(
        None,
        "file with the secret of clients' dropout and noise: a truth file, results.json, or a key of your own; "
        "default: a key made once per user, for capture a new one each time",
        "client",
        column=False,
    )
    attack: str | None = setting(
        None, "one of `gradleak attacks`, or your own as module:Class; default: auto, and lti for images", "attack"
    )
    options: dict[str, Any] = setting(
        {}, "an attack option, key=value; repeat for more", "attack", flag="-o,--option", column=False
    )
    known: tuple[str, ...] = setting(
        ("batch_size",), "what the attacker knows: batch_size, labels, lengths, with commas; '' for nothing", "client"
    )
    max_tokens: int | None = setting(None, "pass over texts of more tokens than this", "drawing", ge=3)
    window: int | None = setting(None, "cut the texts into pieces of exactly this many tokens", "drawing", ge=2)
    draw: Published | None = setting(
        None,
        "take the rows that a published experiment took of a train split: lamp-test (LAMP's and GRAB's) or dager-val "
        "(DAGER's 100 batches); default: by the seed",
        "drawing",
    )
    metrics: tuple[str, ...] = setting(
        (), "optional metrics to score too, with commas: nerr, lpips, or your own as module:object", "scoring",
        column=False,
    )  # fmt: skip
    trials: int = setting(4, "independent batches to attack", "running", ge=1)
    candidates: int | None = setting(
        None, "ask too which of the true texts and so many others a server confirms that has them all in a list",
        "running", ge=1, column=False,
    )  # fmt: skip
    seed: int = setting(0, "fixes what is drawn and all other chance but the clients' own", "drawing")
    attack_seed: int | None = setting(
        None, "fixes the attack's own chance apart from what it faces", "attack", column=False
    )
    device: str = setting("cpu", "any torch device, such as cuda or mps", "loading", column=False)
    budget: str | None = setting(
        None, "time limit: 60s, 5m, 1h; what is done by then is kept", "running", column=False
    )
    memory: str | None = setting(
        None, "what the audit may hold in memory, such as 8GB: what needs more is refused before the work", "running",
        column=False,
    )  # fmt: skip
    out: str | None = setting(None, "folder for the results", "running", column=False)
    redact: bool = setting(False, "mask all texts in what is written and shown", "running", column=False)

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, values: object) -> object:
        """What a named threat model sets, below what is set beside it."""
        if isinstance(values, dict) and isinstance(values.get("threat"), str):
            return {**find_threat(values["threat"]).settings, **values}
        return values

    @field_validator("model", "data", "chat_template", mode="before")
    @classmethod
    def _path(cls, value: object) -> object:
        return str(value) if isinstance(value, Path) else value

    @field_validator("text_column", "label_column", mode="before")
    @classmethod
    def _column(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value  # a column's number may stand unquoted in YAML

    @field_validator("known", "metrics", mode="before")
    @classmethod
    def _list(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("options", mode="before")
    @classmethod
    def _options(cls, value: object) -> object:
        if value is None:
            return {}
        return parse_options(value) if isinstance(value, list | tuple) else value

    @field_validator("known")
    @classmethod
    def _knowable(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = sorted(set(names) - set(KNOWABLE))
        if unknown:
            raise GradleakError(f"known: unknown value {unknown[0]!r}; {suggest(unknown[0], KNOWABLE)}")
        return names

    @field_validator("client")
    @classmethod
    def _rule(cls, text: str) -> str:
        ClientRule.parse(text)
        return text

    @field_validator("lora")
    @classmethod
    def _adapters(cls, text: str | None) -> str | None:
        return None if text is None else str(LoraSettings.parse(text))

    @field_validator("family")
    @classmethod
    def _declaration(cls, name: str | None) -> str | None:
        if name is not None:
            FAMILIES.get(name)  # known from here on, so that what it calls its parts can be selected
        return name

    @field_validator("observe")
    @classmethod
    def _part(cls, text: str) -> str:
        parse_selection(text)
        return text

    @field_validator("budget")
    @classmethod
    def _duration(cls, text: str | None) -> str | None:
        if text is not None:
            parse_duration(text)
        return text

    @field_validator("memory")
    @classmethod
    def _amount(cls, text: str | None) -> str | None:
        if text is not None:
            parse_memory(text)
        return text

    def with_(self, **changes: Any) -> AuditSpec:
        """The same audit with some settings changed; the changes are checked like the rest.

        Another threat model takes the place of what the first has set.
        """
        kept = self.model_dump(include=self.model_fields_set)
        if "threat" in changes and self.threat is not None:
            ours = find_threat(self.threat).settings
            kept = {name: value for name, value in kept.items() if name not in ours or ours[name] != value}
        return type(self).model_validate({**kept, **changes})

    def time_limit(self) -> Budget:
        """The budget, which starts to run now."""
        return Budget(None if self.budget is None else parse_duration(self.budget))

    @property
    def taken_as(self) -> dict[str, str]:
        """What was set of how the model and the data are read, as a command takes it.

        >>> AuditSpec(data="my.csv", text_column=2).taken_as
        {'text_column': '2'}
        """
        return {name: str(value) for name in self.TAKEN_AS if (value := getattr(self, name)) is not None}

    @property
    def memory_limit(self) -> int | None:
        """What may be held in memory, in bytes."""
        return None if self.memory is None else parse_memory(self.memory)

    @property
    def rule(self) -> ClientRule:
        return ClientRule.parse(self.client)

    @property
    def threat_label(self) -> str | None:
        """The threat model's name, with what is set otherwise; None if it was not named."""
        return threat_label(self.threat, self.model_dump())

    @property
    def examples(self) -> int:
        """Private examples behind one update: the batches of all clients whose mean is seen.

        >>> AuditSpec(batch_size=4, aggregate=8).examples
        32
        """
        return self.batch_size * (self.aggregate or 1)

    @property
    def attack_label(self) -> str:
        """
        >>> AuditSpec(attack="lamp-cos", options={"adapt": False}).attack_label
        'lamp-cos adapt=false'
        """
        values = {key: str(v).lower() if isinstance(v, bool) else v for key, v in self.options.items()}
        return " ".join([self.attack or "default", *(f"{key}={value}" for key, value in values.items())])


def about(field: FieldInfo, name: str) -> Any:
    """What a field's declaration says beside its type: group, flag, column."""
    assert isinstance(field.json_schema_extra, dict)
    return field.json_schema_extra[name]


def load_spec(path: Path | None, changes: Mapping[str, Any]) -> AuditSpec:
    """The spec of a YAML file with the given values on top; attack options are joined one by one."""
    values = {} if path is None else read_yaml(path)
    options = {**_table(values.get("options")), **_table(changes.get("options"))}
    values = {**values, **changes, **({"options": options} if options else {})}
    return validated(AuditSpec, values, "the command line" if path is None else str(path))


def _table(value: object) -> dict[str, Any]:
    if isinstance(value, list | tuple):
        return parse_options(value)
    if not isinstance(value, dict | None):
        raise GradleakError("options must be a list of `name: value` lines")
    return dict(value or {})


def parse_options(pairs: Any) -> dict[str, Any]:
    """Options of the form key=value; the attack's own types decide what a value means.

    >>> parse_options(["steps=400", "prior=none"])
    {'steps': '400', 'prior': 'none'}
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = str(pair).partition("=")
        if not equals or not key.strip():
            raise GradleakError(f"option {pair!r} is not of the form key=value")
        if key.strip() in options:
            raise GradleakError(f"option {key.strip()!r} is given twice")
        options[key.strip()] = value.strip()
    return options
