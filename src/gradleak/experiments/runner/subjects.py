"""The models and data that cells are about: loaded when needed, kept for the next cells, known by their hashes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gradleak.audits.modality import MODALITIES, completed
from gradleak.audits.run import load_target
from gradleak.audits.spec import AuditSpec
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.experiments.runner.known import KnownModels, signature
from gradleak.models.base import Target
from gradleak.models.load import modality_of_source
from gradleak.training.learner import Learner

# How much is kept: one model, which may be large, and some data.
MODELS, DATA = 1, 8


class Subjects:
    """Models and data by the settings that name them.

    A model or data given in Python stands in for whatever the settings name. `known` are hashes of models that were
    loaded before, so that planning need not load them again.
    """

    def __init__(
        self,
        *,
        model: Target | None = None,
        data: Any = None,
        known: KnownModels | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self.known = known or KnownModels()
        self._progress = progress
        self._given = None if model is None else _Hashed(model, model.identity)
        modality = MODALITIES.get("text" if model is None else model.modality)
        rows = None if data is None else modality.given(data)
        self._given_data = None if rows is None else _Hashed(rows, lambda: modality.digest(rows))
        self._models: dict[object, _Hashed] = {}
        self._data: dict[object, _Hashed] = {}
        self._learners: dict[str, Learner[Any]] = {}

    @property
    def in_memory(self) -> bool:
        """Whether something was given that no other process can load."""
        return self._given is not None or self._given_data is not None

    @property
    def data_in_memory(self) -> bool:
        return self._given_data is not None

    def modality(self, spec: AuditSpec) -> str:
        return modality_of_source(spec.model) if self._given is None else str(self._given.value.modality)

    def completed(self, spec: AuditSpec) -> AuditSpec:
        """The spec with its attack filled in, once its settings are found to make sense."""
        return completed(spec, self.modality(spec))

    def model(self, spec: AuditSpec) -> Target:
        return self._model(spec).value

    def data(self, spec: AuditSpec) -> Any:
        return self._rows(spec).value

    def learner(self, spec: AuditSpec) -> Learner[Any]:
        """The data of a spec as simulated training sees it, the same for all defences and seeds."""
        key = spec.with_(seed=0, defenses=()).model_dump_json()
        if key not in self._learners:
            self._learners.clear()
            modality = MODALITIES.get(self.modality(spec))
            self._learners[key] = modality.learner(spec, self.data(spec), self.model(spec))
        return self._learners[key]

    def model_hash(self, spec: AuditSpec) -> str:
        """Of the model; one that looks as it did when it was last loaded is not loaded again."""
        key = (
            None
            if self._given is not None
            else signature(spec.model, (spec.task, spec.num_labels, spec.lora, *filter(None, [spec.family])))
        )
        if key is None:
            return self._model(spec).hash
        if key not in self.known.hashes:
            self.known.hashes[key] = self._model(spec).hash
        return self.known.hashes[key]

    def data_hash(self, spec: AuditSpec) -> str:
        return self._rows(spec).hash

    def check(self, spec: AuditSpec, model_hash: str, data_hash: str) -> None:
        """Refuse a model or data that is not what a plan was made with; what was loaded counts, not how it looks."""
        if self._model(spec).hash != model_hash:
            raise GradleakError(f"the model {spec.model} is not the one the experiment was planned with")
        if self._rows(spec).hash != data_hash:
            raise GradleakError(f"the data {spec.data} is not what the experiment was planned with")

    def _model(self, spec: AuditSpec) -> _Hashed:
        def load() -> _Hashed:
            model = load_target(spec, self._progress)
            return _Hashed(model, model.identity)

        key = (spec.model, spec.task, spec.num_labels, spec.lora, spec.family, spec.device)
        return self._given or _kept(self._models, key, MODELS, load)

    def _rows(self, spec: AuditSpec) -> _Hashed:
        def read() -> _Hashed:
            modality = MODALITIES.get(self.modality(spec))
            rows = modality.read(spec, self._progress)
            return _Hashed(rows, lambda: modality.digest(rows))

        return self._given_data or _kept(self._data, (spec.data, spec.text_column, spec.label_column), DATA, read)


class _Hashed:
    """Something loaded, with its hash, which is computed once it is asked for."""

    def __init__(self, value: Any, compute: Callable[[], str]) -> None:
        self.value, self._compute = value, compute

    @functools.cached_property
    def hash(self) -> str:
        return self._compute()


def _kept(shelf: dict[object, _Hashed], key: object, most: int, load: Callable[[], _Hashed]) -> _Hashed:
    if key not in shelf:
        while len(shelf) >= most:
            del shelf[next(iter(shelf))]
        shelf[key] = load()
    return shelf[key]
