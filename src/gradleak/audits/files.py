"""One audit in three steps that share only files: capture an update, attack it, score what was read back."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gradleak.attacks.base import AttackContext, Reconstruction
from gradleak.attacks.run import run_attack
from gradleak.audits.modality import MODALITIES, Attacked, Truth, completed, method_of, modality_of
from gradleak.audits.redact import redact
from gradleak.audits.results import Results, Scenario, Trial, load_results, observed
from gradleak.audits.run import call_secret, load_target
from gradleak.audits.spec import AuditSpec
from gradleak.audits.trials import about_model, as_results, measured
from gradleak.audits.truth import check_place, read_truth
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.files import beside, fill_text, output_folder, replacing
from gradleak.core.memory import within
from gradleak.core.privacy import redacting
from gradleak.core.progress import SILENT, Progress
from gradleak.core.secret import Secret, read_secret
from gradleak.core.seeds import derive_seed
from gradleak.models.base import Target
from gradleak.models.load import load_text_model, modality_of_source
from gradleak.models.selection_text import ALL
from gradleak.scoring.metrics import prepare_metrics
from gradleak.scoring.score import Pair, Score
from gradleak.updates.update import Update, load_update

# What is said of the tensors of an update that was made elsewhere: it does not say by what they were chosen.
SENT = "what was sent"


class AttackedUpdate(NamedTuple):
    """What an attack read back of an update, and why it could not be compared with the truth that was given."""

    results: Results
    problem: GradleakError | None = None


def capture_update(spec: AuditSpec, out: Path, progress: Progress = SILENT) -> tuple[Path, Path]:
    """Draw one batch, make its update, write the folder, and the truth into `<folder>.truth.json` beside it.

    The client draws from a new secret each time, which is part of the truth; a spec that names the truth file as its
    secret makes the same update again.
    """
    spec = completed(spec, modality_of_source(spec.model)).with_(trials=1)
    secret = Secret.draw() if spec.secret is None else read_secret(spec.secret)
    place = beside(out, ".truth.json")
    with output_folder(out) as folder, within(spec.memory_limit):
        modality = MODALITIES.get(modality_of_source(spec.model))
        progress.begin("reading data", 0)
        data = modality.read(spec, progress)  # before the model: a file that is wrong is an error at once
        model = load_target(spec, progress)
        progress.begin("making the update", 0)
        (batch,) = modality.draw(spec, data, model)
        truth, client = modality.truth(batch, model), modality.client(spec, model)
        update = modality.update(client, batch, call_secret(secret, spec.seed, 0, client, truth))
        truth = truth.model_copy(update={"secret": secret.hex})
        with replacing(place) as scratch:
            fill_text(scratch, truth.model_dump_json(indent=2, exclude_unset=True) + "\n")
            update.save(folder)
        model.announce(progress)
        progress.message(observed(update, spec.observe, model).sentence)
    return folder, place


def attack_update(
    update: Path, spec: AuditSpec, truth: Path | None, budget: Budget, progress: Progress = SILENT
) -> AttackedUpdate:
    """Attack one update folder; the results are those of an audit of one trial, scored if the truth is at hand.

    The data of the spec is not the private one, but what the attacker holds of the same kind. The truth is read when
    the attack has ended; if it turns out to be unfit, what was read back is not lost for that.
    """
    with redacting(spec.redact), within(spec.memory_limit):
        attacked = _attack_update(update, spec, truth, budget, progress)
    return attacked._replace(results=redact(attacked.results)) if spec.redact else attacked


def _attack_update(
    update: Path, spec: AuditSpec, truth: Path | None, budget: Budget, progress: Progress
) -> AttackedUpdate:
    if truth is not None:
        check_place(truth)  # before the attack, which may take hours
    modality_name = modality_of_source(spec.model)
    spec = completed(spec, modality_name)
    if truth is not None:
        prepare_metrics(modality_name, spec.metrics, progress)
    model = load_target(spec, progress)
    modality, held = modality_of(model), None
    if "data" in spec.model_fields_set:
        held = modality.read(spec, progress)
        if modality.auxiliary(held) is None:
            raise GradleakError(f"the data holds nothing that an attack on {spec.model} could learn from")
    auxiliary = None if held is None else modality.auxiliary(held)
    progress.begin("reading the update", 0)
    shared = load_update(update, model)
    progress.end()
    model.announce(progress)
    for line in shared.manifest.provenance():
        progress.message(line)
    seed, method = derive_seed(spec.seed, 0), method_of(spec, model.modality).prepared(model)
    (answer,) = run_attack(method, [shared], model, AttackContext([seed], budget, progress, auxiliary))
    known, trial, problem = None, unscored(answer, seed), None
    if truth is not None:
        try:
            known = _of_the_update(_of_the_model(read_truth(truth, model), truth, model), shared)
            attacked = Attacked(spec, modality.batch(known, model), shared, answer, seed)
            closing = budget.closing()
            (control,) = modality.control(method, [attacked], model, [held], closing, progress)
            trial = measured(0, seed, attacked, control, model, closing)
        except GradleakError as error:
            known, problem = None, error
    scenario = _scenario(update, shared, known, spec, model, 0 if auxiliary is None else len(auxiliary))
    return AttackedUpdate(as_results(scenario, spec.attack or method.name, method, model, [trial]), problem)


def unscored(answer: Reconstruction, seed: int) -> Trial:
    """A trial without a truth: what was read back, and no score."""
    read = [
        Pair(
            truth="",
            reconstruction=sentence.text,
            confidence=sentence.confidence,
            certified=sentence.certified,
            stage=sentence.stage,
            scores={},
        )
        for sentence in answer.sentences
    ]
    return Trial(
        index=0,
        seed=seed,
        status=answer.status,
        truth=[],
        labels=None,
        reconstruction=answer,
        pairs=read
        or [
            Pair(truth="", reconstruction=image, scores={}, certified=number in answer.certified_images)
            for number, image in enumerate(answer.images)
        ],
        scores={},
        control_scores={},
        bag_size=len(answer.bag),
        seconds=answer.seconds,
        peak_memory_mb=answer.peak_memory_mb,
    )


def _scenario(
    update: Path, shared: Update, truth: Truth | None, spec: AuditSpec, model: Target, auxiliary: int
) -> Scenario:
    """What the manifest tells of where an update comes from."""
    manifest, told = shared.manifest, truth is not None and truth.labels is not None
    size, held = manifest.known.size, 0 if truth is None else len(truth.examples)
    partial = size is not None and held not in (0, size)
    return Scenario(
        **about_model(model),
        data=str(update),
        data_rows=held,
        auxiliary=auxiliary or None,
        labels="given" if told else "none",
        batch_size=size if truth is None or size is not None else held,
        recorded=True,
        trials=1,
        seed=spec.seed,
        client=manifest.client,
        defenses=list(manifest.defenses),
        observed=observed(shared, ALL if len(shared.tensors) == len(model.parameters()) else SENT, model),
        known=list(manifest.known.names),
        notes=[f"The truth holds {held}, and the update was made from {size}: the rest is not scored."]
        if partial
        else [],
    )


def _of_the_update(truth: Truth, shared: Update) -> Truth:
    """A part of the batch explains no update, so its labels are not looked at."""
    size = shared.manifest.known.size
    partial = truth.modality == "text" and size is not None and size != len(truth.examples)
    return truth.model_copy(update={"labels": None}) if partial else truth


def score_files(folder: Path, truth: Path, spec: AuditSpec, progress: Progress = SILENT) -> Score:
    """Compare what `attack` wrote into a folder with the truth."""
    results = load_results(folder)
    if len(results.trials) != 1:
        raise GradleakError(f"{folder} holds {len(results.trials)} trials; give the folder that an attack wrote")
    if results.redacted:
        raise GradleakError(f"{folder} is redacted: there is no text left to compare")
    kept = read_truth(truth)
    # Texts are compared as the model's tokens tell them apart; pictures need no model.
    model = load_text_model(_source(results, spec), progress=progress) if kept.modality == "text" else None
    progress.begin("scoring", 0)
    return MODALITIES.get(kept.modality).score(results.trials[0].reconstruction, kept, model, spec.metrics)


def _source(results: Results, spec: AuditSpec) -> str:
    """The model that was asked for, else the one that was attacked."""
    return spec.model if "model" in spec.model_fields_set else results.scenario.model


def _of_the_model(truth: Truth, path: Path, model: Target) -> Truth:
    if truth.modality != model.modality:
        raise GradleakError(f"{path} holds {truth.modality}; {model.name} reads {model.examples}")
    return truth
