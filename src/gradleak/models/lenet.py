"""LeNet as the gradient-inversion papers use it: three sigmoid convolutions, one linear layer, no pooling."""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from gradleak.models.image import ImageModel
from gradleak.models.loading import BuiltIn, Loading

WIDTH, KERNEL = 12, 5
# Both papers draw every weight and bias evenly from plus to minus this.
SPREAD = 0.5


class LeNetOptions(BaseModel):
    """What a text such as `lenet:seed=3` can set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(0, ge=0, description="fixes the weights")
    channels: int = Field(3, ge=1, le=16, description="channels of an image")
    size: int = Field(32, ge=8, le=512, description="pixels of its sides")
    classes: int = Field(10, ge=2, le=10_000)


class LeNet(nn.Module):
    """
    >>> sum(p.numel() for p in LeNet(LeNetOptions()).parameters())
    15826
    """

    def __init__(self, options: LeNetOptions) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(options.channels, WIDTH, KERNEL, stride=2, padding=KERNEL // 2),
            nn.Sigmoid(),
            nn.Conv2d(WIDTH, WIDTH, KERNEL, stride=2, padding=KERNEL // 2),
            nn.Sigmoid(),
            nn.Conv2d(WIDTH, WIDTH, KERNEL, padding=KERNEL // 2),
            nn.Sigmoid(),
            nn.Flatten(),
        )
        side = (options.size + 3) // 4  # two strides of 2, rounded up
        self.head = nn.Linear(WIDTH * side * side, options.classes)
        generator = torch.Generator().manual_seed(options.seed)
        with torch.no_grad():
            for _, parameter in sorted(self.named_parameters()):
                parameter.copy_(torch.rand(parameter.shape, generator=generator).mul(2 * SPREAD).sub(SPREAD))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images))
        return logits


def load_lenet(name: str, options: LeNetOptions, how: Loading) -> ImageModel:
    how.refuse_text_settings(name)
    return ImageModel(LeNet(options).to(how.device), (options.channels, options.size, options.size), name)


LENET = BuiltIn(
    "image-classification",
    "a small convolutional net with weights drawn from a seed; the target of the image attacks; "
    "lenet:seed=0,channels=3,size=32,classes=10",
    LeNetOptions,
    load_lenet,
)
