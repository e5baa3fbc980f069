"""Update folders out of files that other training left: weights before and after, or a gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.files import beside
from gradleak.core.foreign import read_foreign
from gradleak.core.progress import SILENT, Progress
from gradleak.models.load import save_model
from gradleak.models.text import TextModel
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.integrations.form import Form
from gradleak.updates.integrations.recording import Recorder, with_weights

SPLIT = "how the steps shared the sentences out is not known; each is taken as one over all of them"


def convert_weights(
    model: TextModel,
    before: Path,
    after: Path,
    out: Path,
    *,
    lr: float,
    steps: int,
    mode: str = "eval",
    batch_size: int | None = None,
    notes: Sequence[str] = (),
    progress: Progress = SILENT,
) -> tuple[Path, Path | None]:
    """An update folder from weights before and after local training; and a model folder, if one had to be written.

    An attack needs the weights the training began with. If those of `before` are not the model's, a model that has
    them is written beside the update, as `<out>.model`.
    """
    place = beside(out, ".model")
    rule = ClientRule.parse(f"fedavg:epochs={steps},batch={batch_size or 1},lr={lr},mode={mode}")
    form = Form.of(model.module)
    files = (before, after)
    start, end = (_named(form, *each) for each in zip(files, read_foreign(files, progress), strict=True))
    guessed = (SPLIT,) if steps > 1 and batch_size != 1 else ()
    weights = {name: weight.detach().cpu() for name, weight in model.module.named_parameters()}
    recorder = Recorder(out, form, rule, notes=(*guessed, *notes))
    folder = recorder.write(out, {**weights, **start}, end, sentences=batch_size)
    if all(bool((weights[name] == weight).all()) for name, weight in start.items()):
        return folder, None
    return folder, save_model(with_weights(model.module, start), model.tokenizer, place)


def convert_gradient(
    model: TextModel,
    gradient: Path,
    out: Path,
    *,
    mode: str = "eval",
    batch_size: int | None = None,
    progress: Progress = SILENT,
) -> Path:
    """An update folder from a gradient of the mean loss, made with the weights of this model."""
    form = Form.of(model.module)
    recorder = Recorder(out, form, ClientRule.parse(f"fedsgd:mode={mode}"))
    weights: Mapping[str, Tensor] = dict(model.module.named_parameters())
    (tensors,) = read_foreign([gradient], progress)
    return recorder.write(out, weights, _named(form, gradient, tensors), sentences=batch_size)


def _named(form: Form, path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    try:
        return form.named(tensors)
    except GradleakError as error:
        raise GradleakError(f"{path}: {error}") from error
