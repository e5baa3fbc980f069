"""Update folders out of files that other training left: weights before and after, or a gradient."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.integrations.form import Form
from gradleak.integrations.recording import Recorder, with_weights
from gradleak.models.load import save_model
from gradleak.models.target import TargetModel
from gradleak.progress import SILENT, Progress
from gradleak.unpacking import SECONDS
from gradleak.update import ClientRule, read_tensors

KINDS = (".safetensors", ".pt", ".pth", ".bin")
SPLIT = "how the steps shared the sentences out is not known; each is taken as one over all of them"


def convert_weights(
    model: TargetModel,
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
    rule = ClientRule.parse(f"fedavg:epochs={steps},batch={batch_size or 1},lr={lr},mode={mode}")
    form = Form.of(model.module)
    start = _named(form, before, progress)
    end = _named(form, after, progress)
    guessed = (SPLIT,) if steps > 1 and batch_size != 1 else ()
    own = {name: weight.detach().cpu() for name, weight in model.module.named_parameters()}
    recorder = Recorder(out, form, rule, notes=(*guessed, *notes))
    folder = recorder.write(out, {**own, **start}, end, sentences=batch_size)
    if all(bool((own[name] == weight).all()) for name, weight in start.items()):
        return folder, None
    place = out.with_name(f"{out.name}.model")
    return folder, save_model(with_weights(model.module, start), model.tokenizer, place)


def convert_gradient(
    model: TargetModel,
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
    return recorder.write(out, weights, _named(form, gradient, progress), sentences=batch_size)


def read_foreign(path: Path, progress: Progress = SILENT) -> dict[str, Tensor]:
    """The floating-point tensors of a file, read in a process of its own that a hostile file cannot get out of."""
    if not path.is_file():
        raise GradleakError(f"there is no file {path}")
    if path.suffix not in KINDS:
        raise GradleakError(f"{path} is none of {', '.join(KINDS)}")
    progress.begin(f"reading {path.name}", 1)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "plain.safetensors"
        command = [sys.executable, "-m", "gradleak.unpacking", str(path), str(target)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise GradleakError(f"{path} could not be read within {SECONDS} s") from error
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"reading it was ended by signal {-done.returncode}"]
            raise GradleakError(f"cannot read {path}: {said[-1]}")
        tensors = read_tensors(target)
    progress.end()
    return tensors


def _named(form: Form, path: Path, progress: Progress) -> dict[str, Tensor]:
    try:
        return form.named(read_foreign(path, progress))
    except GradleakError as error:
        raise error if str(path) in str(error) else GradleakError(f"{path}: {error}") from error
