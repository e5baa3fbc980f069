"""Images by linear algebra: where the first layer sees whole pieces, an update of one image is solved for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.base import AttackContext, Reconstruction
from gradleak.attacks.images.answers import image_uris
from gradleak.attacks.images.base import ImageAttack
from gradleak.attacks.images.first_layer import FirstLayer, first_layer
from gradleak.attacks.images.labels import label_of_one
from gradleak.attacks.images.least_squares import Solution, roughness_gradient, solve
from gradleak.attacks.reasons import Reason, reason_fields
from gradleak.core.errors import GradleakError
from gradleak.data.pictures import to_bytes
from gradleak.models.image import ImageModel
from gradleak.models.image_gradients import batch_gradients
from gradleak.updates.gradient import as_gradient
from gradleak.updates.update import Update

# A pixel is proved if so many of its standard errors are less than half a byte.
STANDARD_ERRORS, HALF_A_BYTE = 5.0, 0.5 / 255
# An image is proved too if its whole gradient is that of the update up to this share: rounding in fp32.
SAME = 1e-5


class ImageExact(ImageAttack):
    """The gradient of the first layer's weight is a sum over the pieces of the image: the gradient by the layer's
    output there times the piece. A position embedding, or a bias, shows the former, so the pieces follow.
    """

    name = "exact"
    summary = "by linear algebra, with a proof: one image of a vision Transformer, or of a dense first layer"
    at_once = 1

    def run(self, updates: Sequence[Update], model: ImageModel, context: AttackContext) -> list[Reconstruction]:
        layer = first_layer(model)
        if layer is None:
            raise GradleakError(
                "exact reads images off a first layer over patches with a position embedding, or over the whole "
                f"image with a bias; {model.name} has neither: try ig"
            )
        return [recovered(update, model, layer) for update in updates]


def recovered(update: Update, model: ImageModel, layer: FirstLayer) -> Reconstruction:
    """What the equations of one update give, and whether it is proved."""
    missing = [name for name in (layer.shows, layer.weight) if name not in update.tensors]
    if missing:
        return Reconstruction(**reason_fields([Reason(kind="matrix-missing", about=missing[0])]))
    gradient = as_gradient(update, model)
    solution = _solved(gradient, model, layer)
    labels, found = _labels(gradient, model)
    several = update.known.size is not None and update.known.size > 1
    tries = [_Try.of(pieces, labels, gradient, model, layer) for pieces in solution.answers]
    best = min(tries, key=lambda each: each.distance)
    error = None if solution.error is None else solution.error * _widest(model)
    proved = not several and (best.distance <= SAME or (error is not None and STANDARD_ERRORS * error < HALF_A_BYTE))
    return Reconstruction(
        images=image_uris(best.image[None]),
        certified_images=[0] if proved else [],
        labels=None if several else labels,
        found=found,
        loss=None if several else best.distance,
        notes=[] if proved else [_why(update, solution, layer)],
    )


def _solved(gradient: Update, model: ImageModel, layer: FirstLayer) -> Solution:
    outputs, weight = layer.equations(gradient.tensors)
    grey = torch.full(model.shape, 0.5, dtype=torch.float64, device=weight.device)
    start = layer.cut(grey if model.normalisation is None else model.normalisation.applied(grey))
    return solve(outputs, weight, start, lambda pieces: layer.cut(roughness_gradient(layer.joined(pieces))))


@dataclass(frozen=True)
class _Try:
    """An image and how far its gradient is from the update, as a share of it."""

    image: Tensor
    distance: float

    @classmethod
    def of(
        cls, pieces: Tensor, labels: list[int] | None, gradient: Update, model: ImageModel, layer: FirstLayer
    ) -> _Try:
        """The image of the pieces; pictures have whole bytes, so these count if they explain the update better."""
        seen = layer.joined(pieces)
        image = (seen if model.normalisation is None else model.normalisation.undone(seen)).float().clamp(0, 1)
        if labels is None or len(labels) != 1:
            return cls(image, 1.0)  # nothing to compare with: every answer is as good
        rounded = torch.from_numpy(to_bytes(image)).to(image) / 255
        rows = torch.stack([image, rounded])[:, None]
        classes = torch.tensor([labels, labels], device=image.device)
        names, training = list(gradient.tensors), gradient.manifest.client.mode == "train"
        with torch.no_grad():
            found = batch_gradients(model, names, rows, classes, training)
        target = torch.cat([tensor.flatten() for tensor in gradient.tensors.values()])
        return cls(image, float(((found - target).norm(dim=1) / target.norm().clamp_min(1e-30)).min()))


def _labels(gradient: Update, model: ImageModel) -> tuple[list[int] | None, list[str]]:
    """The classes, known or of a single image found; None if the update does not show them."""
    if gradient.known.classes is not None:
        return list(gradient.known.classes), []
    if gradient.known.size not in (None, 1):
        return None, []
    try:
        return [label_of_one(gradient, model)], ["labels"]
    except GradleakError:
        return None, []


def _widest(model: ImageModel) -> float:
    """How much a unit of what the model sees is in pixels, at most."""
    return 1.0 if model.normalisation is None else max(map(abs, model.normalisation.std))


def _why(update: Update, solution: Solution, layer: FirstLayer) -> str:
    if update.known.size is not None and update.known.size > 1:
        return "exact solves for one image; of a larger batch it shows a mixture, which nothing proves"
    if solution.known < layer.pieces:
        return (
            f"the update determines {solution.known} of {layer.pieces} directions among the pieces of an image; "
            "the rest of the picture is a guess"
        )
    return (
        f"{100 * solution.residual:.2g} % of the first layer's gradient is left unexplained: noise, a defence, local "
        "steps or more images than one are in the update"
    )
