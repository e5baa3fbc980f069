"""One audit in three steps that share only files: capture an update, attack it, score what was read back."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from gradleak.attacks.base import AttackContext, Reconstruction
from gradleak.attacks.run import run_attack
from gradleak.audits.modality import MODALITIES, Truth, completed, method_of, modality_of
from gradleak.audits.results import observed
from gradleak.audits.run import load_target
from gradleak.audits.spec import AuditSpec
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.files import beside, fill_text, output_folder, replacing, write_text
from gradleak.core.progress import SILENT, Progress
from gradleak.core.reading import read_model
from gradleak.core.seeds import derive_seed
from gradleak.models.load import load_text_model, modality_of_source
from gradleak.scoring.score import Score
from gradleak.updates.update import load_update

FILE = "reconstruction.json"


def capture_update(spec: AuditSpec, out: Path, progress: Progress = SILENT) -> tuple[Path, Path]:
    """Draw one batch, make its update, write the folder, and the truth into `<folder>.truth.json` beside it."""
    spec = completed(spec, modality_of_source(spec.model)).with_(trials=1)
    truth = beside(out, ".truth.json")
    with output_folder(out) as folder:
        modality = MODALITIES.get(modality_of_source(spec.model))
        data = modality.read(spec)  # before the model: a file that is wrong is an error at once
        model = load_target(spec, progress)
        (batch,) = modality.draw(spec, data, model)
        update = modality.update(modality.client(spec, model), batch, spec.seed)
        with replacing(truth) as scratch:
            fill_text(scratch, modality.truth(batch, model).model_dump_json(indent=2, exclude_unset=True) + "\n")
            update.save(folder)
        progress.message(observed(update, spec.observe, model).sentence)
    return folder, truth


def attack_update(
    update: Path, spec: AuditSpec, out: Path | None, budget: Budget, progress: Progress
) -> tuple[Reconstruction, Path | None]:
    """Attack one update folder; write the reconstruction if a folder is given.

    The data of the spec is not the private one, which nobody has here, but what the attacker holds of the same kind.
    """
    spec = completed(spec, modality_of_source(spec.model))
    with nullcontext() if out is None else output_folder(out) as folder:
        model = load_target(spec, progress)
        modality, auxiliary = modality_of(model), None
        if "data" in spec.model_fields_set:
            auxiliary = modality.auxiliary(modality.read(spec))
            if auxiliary is None:
                raise GradleakError(f"the data holds nothing that an attack on {spec.model} could learn from")
        shared = load_update(update, model)
        for line in shared.manifest.provenance():
            progress.message(line)
        context = AttackContext([derive_seed(spec.seed, 0)], budget, progress, auxiliary)
        (answer,) = run_attack(method_of(spec, model.modality), [shared], model, context)
        text = answer.model_dump_json(indent=2) + "\n"
        return answer, None if folder is None else write_text(folder / FILE, text)


def score_files(reconstruction: Path, truth: Path, spec: AuditSpec) -> Score:
    """Compare what `attack` wrote with what `capture` kept."""
    answer = read_model(reconstruction, Reconstruction, "a reconstruction")
    kept = read_model(truth, Truth, "a truth file")
    # Texts are compared as the model's tokens tell them apart; pictures need no model.
    model = load_text_model(spec.model) if kept.modality == "text" else None
    return MODALITIES.get(kept.modality).score(answer, kept, model, spec.metrics)
