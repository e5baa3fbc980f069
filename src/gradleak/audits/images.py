"""Audits of image models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.attacks.base import Attack, AttackContext, Reconstruction
from gradleak.attacks.images.control import ImageControl
from gradleak.attacks.run import run_attack
from gradleak.audits.modality import Attacked, ControlScores, Modality, Truth
from gradleak.audits.spec import AuditSpec
from gradleak.clients.images import ImageClient
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.identity import digest
from gradleak.core.progress import SILENT, Progress
from gradleak.core.secret import Secret
from gradleak.data.corpora import image_file
from gradleak.data.draws import draw_images
from gradleak.data.pictures import Pictures, disjoint, from_uris, read_pictures
from gradleak.data.texts import BUILT_IN, KINDS
from gradleak.models.image import ImageModel
from gradleak.scoring.inferred import inferred_accuracy
from gradleak.scoring.score import Score
from gradleak.scoring.score_images import score_images
from gradleak.training.images import ImageLearner
from gradleak.updates.update import Update


@dataclass(frozen=True)
class ImageData:
    """Private images, and those of the same kind that the attacker holds; none are among both."""

    private: Pictures
    auxiliary: Pictures | None


class ImageAudits(Modality[ImageModel, ImageData, Pictures]):
    name = "images"
    training = ImageLearner.__module__
    unused = frozenset(
        {"task", "lora", "text_column", "label_column", "chat_template", "max_tokens", "window", "draw", "candidates"}
    )

    def read(self, spec: AuditSpec, progress: Progress = SILENT) -> ImageData:
        if spec.data == BUILT_IN or Path(spec.data).suffix.lower() in KINDS:
            raise GradleakError(
                f"{spec.model} reads images, and {spec.data} holds texts; give --data an .npz of images, or cifar10"
            )
        return ImageData(*read_pictures(image_file(spec.data, progress)))

    def given(self, data: Any) -> ImageData:
        private, auxiliary = data if isinstance(data, tuple) else (data, None)
        return ImageData(*disjoint(private, auxiliary))

    def digest(self, data: ImageData) -> str:
        auxiliary = None if data.auxiliary is None else data.auxiliary.digest
        return digest({"private": data.private.digest, "auxiliary": auxiliary})[:32]

    def about(self, data: ImageData, model: ImageModel) -> dict[str, Any]:
        auxiliary = None if data.auxiliary is None else len(data.auxiliary)
        return {"data_rows": len(data.private), "labels": "given", "auxiliary": auxiliary}

    def auxiliary(self, data: ImageData) -> Pictures | None:
        return data.auxiliary

    def draw(self, spec: AuditSpec, data: ImageData, model: ImageModel) -> list[Pictures]:
        return draw_images(data.private, spec.examples, spec.trials, spec.seed)

    def truth(self, batch: Pictures, model: ImageModel) -> Truth:
        return Truth(images=batch.uris(), labels=list(batch.labels))

    def batch(self, truth: Truth, model: ImageModel) -> Pictures:
        if truth.classes is None:
            raise GradleakError(f"the truth needs a label for each of its {len(truth.examples)} images")
        pictures = Pictures(from_uris(truth.examples), tuple(truth.classes))
        model.check_shape(pictures.shape)
        model.check_labels(pictures.labels)
        return pictures

    def client(self, spec: AuditSpec, model: ImageModel) -> ImageClient:
        return ImageClient(model, spec.known, spec.client, spec.defenses, spec.observe, spec.aggregate or 1)

    def update(self, client: ImageClient, batch: Pictures, secret: Secret) -> Update:
        return client.update(batch, secret)

    def learner(self, spec: AuditSpec, data: ImageData, model: ImageModel) -> ImageLearner:
        return ImageLearner(data.private)

    def score(self, found: Reconstruction, truth: Truth, model: ImageModel | None, metrics: Sequence[str]) -> Score:
        return score_images(found, Pictures(from_uris(truth.examples), tuple(truth.classes or ())), metrics=metrics)

    def facts(self, trial: Attacked[Pictures], model: ImageModel, budget: Budget) -> dict[str, Any]:
        return {"found": inferred_accuracy(trial.reconstruction, trial.batch.labels)}

    def control(
        self,
        method: Attack,
        trials: Sequence[Attacked[Pictures]],
        model: ImageModel,
        data: Sequence[ImageData | None],
        budget: Budget,
        progress: Progress,
    ) -> list[ControlScores]:
        """The mean auxiliary image, or plain grey."""
        reached = []
        for trial, own in zip(trials, data, strict=True):
            context = AttackContext([trial.seed], auxiliary=None if own is None else own.auxiliary)
            (guess,) = run_attack(ImageControl(), [trial.update], model, context)
            reached.append(ControlScores(score_images(guess, trial.batch, metrics=trial.spec.metrics).metrics))
        return reached


IMAGES = ImageAudits()
