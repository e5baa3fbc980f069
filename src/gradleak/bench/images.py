"""What `exact` and `ig` read of single images on image models of real shapes: python -m gradleak.bench.images --help

Weights are drawn as the library draws them, or read from a folder. Images are enlarged to the model's size.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from gradleak.attacks.run import attack
from gradleak.bench.provenance import ABOUT, about
from gradleak.clients.images import ImageClient
from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text
from gradleak.core.output import say
from gradleak.data.corpora import image_file
from gradleak.data.pictures import Pictures, read_pictures, to_bytes
from gradleak.models.base import Target
from gradleak.models.image import ImageModel
from gradleak.models.load import load_model
from gradleak.scoring.score_images import score_images

# Shapes as they were published: ViT-Tiny, -Small and -Base with patches of 16 pixels, ResNet-18.
VIT = {
    "vit-tiny": {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768},
    "vit-small": {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
    "vit-base": {},
}
RESNET18 = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "embedding_size": 64}
CLASSES = 10
# Beside them the small network of the gradient-inversion papers, of 32 pixels.
SHAPES = (*VIT, "resnet-18", "lenet")


def drawn(shape: str, side: int, patch: int, seed: int) -> ImageModel:
    """A model of a published shape with the weights that transformers draws."""
    import transformers
    from transformers.image_processing_base import ImageProcessingMixin

    torch.manual_seed(seed)
    if shape == "resnet-18":
        module: Any = transformers.ResNetForImageClassification(
            transformers.ResNetConfig(**RESNET18, num_labels=CLASSES)
        )
    elif shape == "lenet":
        return image_target(load_model(f"lenet:seed={seed}"))
    elif shape in VIT:
        settings: dict[str, Any] = {**VIT[shape], "image_size": side, "patch_size": patch, "num_labels": CLASSES}
        module = transformers.ViTForImageClassification(transformers.ViTConfig(**settings))
    else:
        raise GradleakError(f"there is no shape {shape!r}: {', '.join(SHAPES)}, or a folder")
    processor = ImageProcessingMixin(image_mean=0.5, image_std=0.5)
    return image_target(
        load_model(module, shape=(3, side, side), processor=processor, name=f"{shape} of {side} pixels")
    )


def image_target(model: Target) -> ImageModel:
    """The model, if it reads images."""
    if not isinstance(model, ImageModel):
        raise GradleakError(f"{model.name} reads {model.examples}, and an image model is needed here")
    return model


def enlarged(pictures: Pictures, side: int) -> Pictures:
    """The same pictures at another size, as bytes again."""
    if pictures.shape[1:] == (side, side):
        return pictures
    larger = F.interpolate(pictures.values(), size=(side, side), mode="bicubic")
    return Pictures(to_bytes(larger), pictures.labels)


def measure(
    model: ImageModel, pictures: Pictures, name: str, client: str, defenses: Sequence[str], **options: Any
) -> Any:
    """One update of every picture alone, and what the attack makes of each."""
    trials = []
    for number in range(len(pictures)):
        one = pictures.some([number])
        update = ImageClient(model, client=client, defenses=defenses).update(one)
        began = time.monotonic()
        (found,) = attack(update, model, name, seed=number, **options)
        scores = score_images(found, one)
        trials.append(
            {
                **{metric: scores.metrics[metric] for metric in ("mse", "psnr")},
                "certified": bool(found.certified_images),
                "exactly_right": scores.metrics["psnr"] == 100,
                "label_right": found.labels == list(one.labels),
                "explained": found.loss,
                "seconds": round(time.monotonic() - began, 1),
                "notes": found.notes,
            }
        )
        say(f"{model.name}, {name}, {client}, {list(defenses)}: {json.dumps(trials[-1])}")
    return {
        "model": model.name, "attack": name, "client": client, "defenses": list(defenses), "options": options,
        "images": len(trials), "mse": float(np.mean([trial["mse"] for trial in trials])),
        "psnr": float(np.mean([trial["psnr"] for trial in trials])),
        "certified": sum(trial["certified"] for trial in trials),
        "certified_wrong": sum(trial["certified"] and not trial["exactly_right"] for trial in trials),
        "exactly_right": sum(trial["exactly_right"] for trial in trials),
        "labels_right": sum(trial["label_right"] for trial in trials), "trials": trials,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="images, as audits take them")
    parser.add_argument("--shape", default="vit-small", help=f"{', '.join(SHAPES)}, or a model's folder")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--patch", type=int, default=16)
    parser.add_argument("--attack", default="exact")
    parser.add_argument("--steps", type=int, help="of ig")
    parser.add_argument("--hinge", help="of ig, under sign compression")
    parser.add_argument("--client", default="fedsgd")
    parser.add_argument("--defense", action="append", default=[])
    parser.add_argument("--first", type=int, default=0, help="the first private image that is taken")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a JSON file; cells of before are kept in it")
    chosen = parser.parse_args(arguments)
    given = Path(chosen.shape)
    if given.is_dir():
        model = image_target(load_model(str(given)))
    else:
        model = drawn(chosen.shape, chosen.side, chosen.patch, chosen.seed)
    private, _ = read_pictures(image_file(chosen.data))
    pictures = enlarged(private.some(range(chosen.first, chosen.first + chosen.images)), model.shape[1])
    options = {name: value for name in ("steps", "hinge") if (value := getattr(chosen, name)) is not None}
    cell = measure(model, pictures, chosen.attack, chosen.client, chosen.defense, **options)
    cell |= {"patch": chosen.patch, "weights": "of a folder" if given.is_dir() else f"drawn, seed {chosen.seed}"}
    if chosen.out is not None:
        kept = json.loads(chosen.out.read_text()) if chosen.out.is_file() else {"cells": []}
        named = about("each its own", Path(chosen.data), before=kept)
        write_text(chosen.out, json.dumps({ABOUT: named, "cells": [*kept["cells"], cell]}, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except GradleakError as error:
        sys.exit(str(error))
