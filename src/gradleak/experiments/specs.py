"""Settings of experiments: those of an audit, which all cells share, and the experiment's own on top."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradleak.audits.spec import AuditSpec


class AttackChoice(BaseModel):
    """An attack with its options, in several sets of which it may be listed; a bare name stands for itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    options: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @property
    def label(self) -> str:
        return AuditSpec(attack=self.name, options=self.options).attack_label

    def on(self, spec: AuditSpec, **changes: Any) -> AuditSpec:
        """The audit with this attack."""
        return spec.with_(attack=self.name, options=self.options, **changes)


class ExperimentSpec(BaseModel):
    """Keys of an audit stand beside the experiment's own in its file, but for those that it varies itself."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    # Settings of an audit that the experiment varies, so that they cannot be set for all cells.
    varied: ClassVar[frozenset[str]] = frozenset()

    audit: AuditSpec = Field(default_factory=AuditSpec, description="what all cells share")

    @model_validator(mode="before")
    @classmethod
    def _split(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("audit") or {}, dict):
            return values  # nothing to split, or what is no table is said to be none
        shared = {key: value for key, value in values.items() if key in cls._shared()}
        own = {key: value for key, value in values.items() if key not in shared}
        return {**own, "audit": {**(own.get("audit") or {}), **shared}}

    @classmethod
    def _shared(cls) -> set[str]:
        return set(AuditSpec.model_fields) - set(cls.model_fields) - cls.varied

    @classmethod
    def keys_in_files(cls) -> list[str]:
        return sorted(cls._shared() | (set(cls.model_fields) - {"audit"}))
