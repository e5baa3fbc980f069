"""Learning To Invert on images: a network trained on auxiliary images reads the picture off an update at once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from gradleak.attacks.base import AttackContext, AttackOptions, Reconstruction
from gradleak.attacks.images.answers import image_uris
from gradleak.attacks.images.base import ImageAttack
from gradleak.attacks.inversion.image_features import FEATURES_VERSION, ImageFeatures, image_features
from gradleak.attacks.inversion.image_networks import ImageNetworkSettings, Layers, load_image_inverter
from gradleak.attacks.inversion.image_problem import ImageProblem
from gradleak.attacks.inversion.ridge import LinearInverter, Rescaled, fit_ridge
from gradleak.attacks.inversion.saved import MANIFEST, InverterManifest, save_inverter
from gradleak.attacks.inversion.training import Look, Training, TrainSettings, train
from gradleak.core.assets import cache_folder
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder
from gradleak.core.progress import Progress
from gradleak.data.pictures import Pictures
from gradleak.defenses import parse_defenses
from gradleak.models.image import ImageModel
from gradleak.updates.manifest import Manifest
from gradleak.updates.update import Update


class ImageLtiOptions(AttackOptions):
    inverter: str | None = Field(None, description="folder of the trained network; default: kept in the cache")
    features: ImageFeatures = Field("structured", description="whole: the gradient as it is, as published")
    layers: Layers = Field("mlp", description="mlp: as published; linear: no hidden layers, solved for at once")
    hidden: int = Field(1000, ge=1, le=100_000, description="width of both hidden layers; published: 3000")
    mirror: bool = Field(True, description="whether mirrored auxiliary images are learned from too")
    steps: int = Field(2000, ge=1, description="training steps; it ends earlier if held-out images no longer gain")
    batch: int = Field(128, ge=1, description="images of a step")
    lr: float = Field(1e-3, gt=0, description="largest step size")
    patience: int = Field(10, ge=1, description="looks at the held-out images without a gain that end the training")
    mixed: bool = Field(False, description="multiply in bfloat16 while training: about twice as many steps a minute")


class ImageLti(ImageAttack):
    name = "lti"
    summary = "Learning To Invert: a network trained on auxiliary images for this model and this defence"
    Options = ImageLtiOptions
    options: ImageLtiOptions

    def run(self, updates: Sequence[Update], model: ImageModel, context: AttackContext) -> list[Reconstruction]:
        made = updates[0].manifest
        if any((u.manifest.client, u.manifest.defenses) != (made.client, made.defenses) for u in updates):
            raise GradleakError("lti reads updates together only if they were made and defended in the same way")
        folder = self._folder(made, model, context.auxiliary)
        if (folder / MANIFEST).is_file():
            manifest, network = load_image_inverter(folder, model)
        else:
            manifest, network = self._train(folder, made, model, context)
        for update in updates:
            manifest.refuse_others(update)
        rows = {name: torch.stack([update.tensors[name] for update in updates]) for name in manifest.tensors}
        features = ImageNetworkSettings.model_validate(manifest.network).features
        with torch.no_grad():
            images: Tensor = network(image_features(rows, model.head, features).to(model.device))
        status = manifest.training.status
        return [Reconstruction(images=image_uris(image.reshape(1, *model.shape)), status=status) for image in images]

    def _folder(self, made: Manifest, model: ImageModel, auxiliary: Pictures | None) -> Path:
        """The folder of the network for such updates: as set, or a name that changes with all that decides it."""
        if self.options.inverter is not None:
            return Path(self.options.inverter)
        images = None if auxiliary is None else auxiliary.digest
        options = self.options.model_dump_json()
        decides = f"{FEATURES_VERSION} {model.fingerprint} {made.defenses} {made.client} {images} {options}"
        return cache_folder() / "inverters" / hashlib.sha256(decides.encode()).hexdigest()[:32]

    def _train(
        self, folder: Path, made: Manifest, model: ImageModel, context: AttackContext
    ) -> tuple[InverterManifest, Rescaled]:
        """Train the network and write it; after a stop by the budget it is used as it is and trained on later."""
        if made.client.local or not made.client.plain:
            raise GradleakError(f"lti learns from plain gradients; these updates are of {made.client}")
        auxiliary = context.auxiliary
        if not auxiliary:
            raise GradleakError("lti needs auxiliary images to learn from, or a trained network: -o inverter=FOLDER")
        chosen = self.options
        network = ImageNetworkSettings.model_validate(
            chosen.model_dump(include={"features", "layers", "hidden", "mirror"})
        )
        settings = TrainSettings.model_validate(
            chosen.model_dump(include={"steps", "batch", "lr", "patience", "mixed"})
        )
        problem = ImageProblem(
            model, auxiliary, parse_defenses(made.defenses), network, settings.seed, made.client.mode == "train"
        )
        with output_folder(folder):
            if isinstance(problem.network, LinearInverter):
                training = _solve(problem, problem.network, context.budget, context.progress)
            else:
                training = train(problem, settings, folder, context.budget, context.progress)
            manifest = InverterManifest(
                kind="image",
                model=model.name,
                model_fingerprint=model.fingerprint,
                client=made.client,
                defenses=made.defenses,
                tensors=problem.shapes,
                network=network.model_dump(),
                auxiliary={"images": len(auxiliary), "digest": auxiliary.digest},
                settings=settings,
                training=training,
            )
            if training.status == "completed":
                save_inverter(folder, problem.network.state_dict(), manifest)
        return manifest, problem.network


def _solve(problem: ImageProblem, network: LinearInverter, budget: Budget, progress: Progress) -> Training:
    """The linear network, solved for directly; of many images a budget lets it see fewer."""
    started = time.monotonic()
    (others,) = problem.held_out()
    error, finished = fit_ridge(network, problem.everything(), problem.rows, others, progress, budget)
    look = Look(step=1, training=error, held_out=error)
    return Training(
        status="completed" if finished else budget.reason,
        step=1,
        best_step=1,
        best_loss=error,
        seconds=time.monotonic() - started,
        looks=[look],
    )
