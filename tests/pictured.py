"""Image classifiers of every kind at a size that runs in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from gradleak import ImageModel, load_model
from gradleak.models.image_files import classifier_of

SIDE, CLASSES = 16, 4
_VIT = {
    "image_size": SIDE, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "num_labels": CLASSES,
}  # fmt: skip

# Configurations of transformers by their `model_type`.
CONFIGS: dict[str, Callable[[], Any]] = {
    "vit": lambda: transformers.ViTConfig(**_VIT),
    "deit": lambda: transformers.DeiTConfig(**_VIT),
    "dinov2": lambda: transformers.Dinov2Config(**_VIT),
    "beit": lambda: transformers.BeitConfig(**_VIT, use_absolute_position_embeddings=True),
    "swin": lambda: transformers.SwinConfig(
        image_size=SIDE, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4, num_labels=CLASSES
    ),
    "resnet": lambda: transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=CLASSES
    ),
    "regnet": lambda: transformers.RegNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4, num_labels=CLASSES
    ),
    "convnext": lambda: transformers.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2, image_size=SIDE, num_labels=CLASSES
    ),
    "mobilenet_v2": lambda: transformers.MobileNetV2Config(
        image_size=SIDE, depth_multiplier=0.25, num_labels=CLASSES
    ),
}
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]


def library_module(kind: str, seed: int = 0) -> Any:
    """A random classifier of transformers."""
    torch.manual_seed(seed)
    config = CONFIGS[kind]()
    config.architectures = [classifier_of(kind)]
    config.initializer_range = 0.15  # the usual 0.02 makes models this small nearly blind
    return transformers.AutoModelForImageClassification.from_config(config, attn_implementation="eager").eval()


class PreNorm(nn.Module):
    """A Transformer's layer as vision libraries write it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.heads = heads

    def forward(self, tokens: Tensor) -> Tensor:
        count, length, width = tokens.shape
        parts = self.qkv(self.norm1(tokens)).reshape(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        seen = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).softmax(-1) @ value
        tokens = tokens + self.proj(seen.transpose(1, 2).reshape(count, length, width))
        return tokens + self.mlp(self.norm2(tokens))


class SmallViT(nn.Module):
    """A vision Transformer of timm's structure: all tokens have a position, the first is the class token."""

    def __init__(
        self, width: int = 32, layers: int = 2, patch: int = 4, side: int = SIDE, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, stride=patch)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + (SIDE // patch) ** 2, width) * 0.1)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[PreNorm(width, 2) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.proj(pixels).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(self.drop(tokens)))[:, 0])
        return logits


class Residual(nn.Module):
    """Two convolutions with batch norms beside a way around, as in torchvision."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1, self.bn2, self.relu = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(images)))))
        return self.relu(out + images)  # type: ignore[no-any-return]


def _residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, CLASSES),
    )  # fmt: skip


def _depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.SiLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 16, 1), nn.GroupNorm(4, 16), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def _squeezed() -> nn.Module:
    """Classes from a convolution, as in SqueezeNet."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, CLASSES, 1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )  # fmt: skip


def _dense() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, CLASSES)
    )


# Modules of the structures that torchvision and timm have, which this environment does not.
MODULES: dict[str, Callable[[], nn.Module]] = {
    "residual": _residual,
    "depthwise": _depthwise,
    "squeezed": _squeezed,
    "dense": _dense,
    "small-vit": SmallViT,
}
KINDS = [*CONFIGS, *MODULES]


def image_model(kind: str, seed: int = 0) -> ImageModel:
    """A random model, loaded the way a user's own object is."""
    if kind in CONFIGS:
        return load_model(library_module(kind, seed), shape=(3, SIDE, SIDE), name=kind)  # type: ignore[return-value]
    torch.manual_seed(seed)
    return load_model(MODULES[kind](), shape=(3, SIDE, SIDE), name=kind)  # type: ignore[return-value]
