"""Fresh LoRA adapters as texts: `r=16,alpha=32,targets=query+value`, or a preset's name. Loads without torch."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gradleak.core.client_presets import PRESETS
from gradleak.core.errors import GradleakError
from gradleak.core.parameters import split_parameters, validated
from gradleak.core.registry import suggest

ALL = "all"


def _roles(value: object) -> object:
    """Roles as a text has them: commas separate settings, so a plus joins roles."""
    return tuple(part.strip() for part in value.split("+")) if isinstance(value, str) else value


class LoraSettings(BaseModel):
    """Adapters to put on a model before a client trains; only their factors are trained and sent.

    >>> LoraSettings.parse("r=16,targets=query+value").scale
    2.0
    >>> str(LoraSettings.parse("flowertune:b=0.02"))
    'r=32,alpha=64,targets=query+value,dropout=0.075,b=0.02'
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    r: int = Field(8, ge=1, le=65_536, description="rank of the factors")
    alpha: float | None = Field(None, gt=0, le=1e6, description="their product counts alpha/r times; default: 2r")
    targets: Annotated[tuple[str, ...], BeforeValidator(_roles)] = Field(
        ("query", "value"), min_length=1, description="modules with adapters, joined by +, or all"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="of what A sees, with mode=train")
    rslora: bool = Field(False, description="the product counts alpha/sqrt(r) times instead")
    dora: bool = Field(False, description="DoRA: the length of every row of a weight is trained apart")
    b: float = Field(0.0, ge=0, le=10, description="standard deviation of B; 0: the first round, as peft makes it")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="from which the factors are drawn")

    @classmethod
    def parse(cls, text: str) -> LoraSettings:
        """The settings of a text; those of a preset can be changed one by one, as `flowertune:r=8`."""
        if "=" in text.partition(":")[0]:
            name, given = "", dict[str, Any]()
            _, values = split_parameters(f"lora:{text}", modules=False)
        else:
            name, values = split_parameters(text, modules=False)
            known = {preset for preset, each in PRESETS.items() if each.lora}
            if name not in known:
                raise GradleakError(
                    f"lora: {name!r} is neither of the form r=16,targets=query+value nor a preset with adapters; "
                    f"{suggest(name, sorted(known))}"
                )
            given = dict(PRESETS[name].lora)
        return validated(cls, {**given, **values}, f"lora {name!r}" if name else "lora")

    @property
    def scale(self) -> float:
        """By what the product of the factors is multiplied."""
        return self.strength / (self.r**0.5 if self.rslora else self.r)

    @property
    def strength(self) -> float:
        """Alpha, as given or by default."""
        return 2.0 * self.r if self.alpha is None else self.alpha

    @property
    def sentence(self) -> str:
        """What whoever reads a result must know."""
        kind = "DoRA" if self.dora else "rank-stabilised LoRA" if self.rslora else "LoRA"
        later = f"B with standard deviation {self.b:g}" if self.b else "B is zero, as in the first round"
        return (
            f"Fresh {kind} adapters ({self}) are on the model, drawn from seed {self.seed}, {later}: only they are "
            "trained and sent."
        )

    def __str__(self) -> str:
        usual = {name: field.default for name, field in type(self).model_fields.items()}
        always = {"r": self.r, "alpha": f"{self.strength:.12g}", "targets": "+".join(self.targets)}
        more = {name: value for name, value in self if name not in always and value != usual[name]}
        return ",".join(f"{name}={_text(value)}" for name, value in (always | more).items())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
