"""A small image generator, trained as the decoder of a variational autoencoder on the auxiliary images."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core.assets import cache_folder
from gradleak.core.budget import Budget
from gradleak.core.files import fill_tensors, replacing
from gradleak.core.progress import Progress
from gradleak.data.pictures import Pictures

# Of a decoded pixel around the true pixel: what weighs the pixels against the spread of the latents.
PIXEL_SPREAD = 0.1
BATCH, LR = 64, 2e-3


class Generator(nn.Module):
    """Latent vectors to images from 0 to 1: a linear layer, then three convolutions that double the sides."""

    def __init__(self, shape: tuple[int, int, int], latent: int, width: int) -> None:
        super().__init__()
        self.shape, self.latent, self.width = shape, latent, width
        self.sides = [_eighth(side) for side in shape[1:]]
        self.first = nn.Linear(latent, 4 * width * self.sides[0] * self.sides[1])
        widths = [4 * width, 2 * width, width]
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(widths))
        self.last = nn.Conv2d(width, shape[0], 3, padding=1)

    def forward(self, latents: Tensor) -> Tensor:
        states = F.silu(self.first(latents)).reshape(len(latents), -1, *self.sides)
        for layer in self.layers:
            states = F.silu(layer(F.interpolate(states, scale_factor=2.0)))
        images = self.last(F.interpolate(states, scale_factor=2.0))
        return torch.sigmoid(images[..., : self.shape[1], : self.shape[2]])


class _Encoder(nn.Module):
    """Images to the mean and the logarithmic variance of their latents."""

    def __init__(self, shape: tuple[int, int, int], latent: int, width: int) -> None:
        super().__init__()
        widths = [shape[0], width, 2 * width, 4 * width]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Conv2d(a, b, 3, stride=2, padding=1), nn.SiLU()]
        sides = [_eighth(side) for side in shape[1:]]
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * width * sides[0] * sides[1], 2 * latent))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.body(images).chunk(2, dim=1)
        return mean, spread


def trained_generator(
    auxiliary: Pictures,
    latent: int,
    width: int,
    epochs: int,
    device: torch.device,
    budget: Budget,
    progress: Progress,
    mixed: bool = False,
) -> Generator:
    """The generator of these images and settings, from the cache or trained now and kept there.

    `mixed` is training with products in bfloat16 and channels last: 26 ms a step of a core in place of 68.
    """
    place = _place(auxiliary, latent, width, epochs, mixed)
    generator = Generator(auxiliary.shape, latent, width)  # type: ignore[arg-type] # images have three dimensions
    if place.is_file():
        from safetensors.torch import load_file

        generator.load_state_dict(load_file(place))
    elif _train(generator, auxiliary, epochs, device, budget, progress, mixed):
        _save(generator, place)
    return generator.to(device).requires_grad_(False)


def _train(
    generator: Generator,
    auxiliary: Pictures,
    epochs: int,
    device: torch.device,
    budget: Budget,
    progress: Progress,
    mixed: bool,
) -> bool:
    """Whether the training came to its end."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for module in generator.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.reset_parameters()
        encoder = _Encoder(generator.shape, generator.latent, generator.width).to(device)
        generator.to(device)
        if mixed:
            for network in (encoder, generator):
                network.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # its stubs lack this form
        images = auxiliary.values(device)
        steps = epochs * -(-len(images) // BATCH)
        optimizer = torch.optim.Adam([*encoder.parameters(), *generator.parameters()], lr=LR, fused=mixed)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        progress.begin("training a generator on the auxiliary images", steps, "steps")
        done = 0
        for _ in range(epochs):
            for part in torch.randperm(len(images)).split(BATCH):
                if budget.over:
                    progress.end()
                    return False
                with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
                    loss = _loss(generator, encoder, _mirrored(images[part.to(device)]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                done += 1
                progress.advance(done, loss=float(loss.detach()))
        progress.end()
    generator.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return True


def _loss(generator: Generator, encoder: _Encoder, images: Tensor) -> Tensor:
    """The negative evidence bound per pixel: errors of decoded images, and latents' distance from a unit normal."""
    mean, spread = (part.float() for part in encoder(images))
    latents = mean + torch.randn_like(mean) * (spread / 2).exp()
    apart = (generator(latents).float() - images).square().mean() / (2 * PIXEL_SPREAD**2)
    surprise = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(dim=1).mean()
    return apart + surprise / images[0].numel()


def _mirrored(images: Tensor) -> Tensor:
    """Half of the images turned left to right: a picture's mirror image is as likely."""
    turned = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(turned, images.flip(-1), images)


def _place(auxiliary: Pictures, latent: int, width: int, epochs: int, mixed: bool) -> Path:
    decides = f"{auxiliary.digest} {latent} {width} {epochs} {PIXEL_SPREAD} {BATCH} {LR}" + " mixed" * mixed
    return cache_folder() / "generators" / f"{hashlib.sha256(decides.encode()).hexdigest()[:32]}.safetensors"


def _save(generator: Generator, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as scratch:
        fill_tensors(scratch, generator.state_dict())


def _eighth(side: int) -> int:
    return -(-side // 8)
