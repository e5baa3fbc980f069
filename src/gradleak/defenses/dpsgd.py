"""DP-SGD: every sentence's gradient is clipped, then noise is added to their sum. Both by Opacus."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradleak.core.errors import GradleakError
from gradleak.defenses.accounting import LEAST_NOISE, MOST_NOISE, closed_form, noise_for, spent
from gradleak.defenses.base import Defense, Gradient, Promise
from gradleak.models.base import Examples, Target
from gradleak.updates.client_rule import ClientRule

# Rows and steps of the largest training that is thought of.
MOST = 10**12


class DpSgd(Defense):
    summary = "differential privacy: each sentence's gradient is clipped, noise is added to their sum (Opacus)"
    reveals = "the clipping norm and the noise multiplier"
    lossy, clips = False, True

    clip: float = Field(1.0, gt=0, description="largest norm of one sentence's gradient")
    noise: float | None = Field(
        None, ge=0, le=MOST_NOISE, description="noise multiplier: noise on the sum, in units of clip"
    )
    epsilon: float | None = Field(None, gt=0, description="instead of noise: the least noise that keeps ε below this")
    rows: int | None = Field(None, ge=1, le=MOST, description="sentences of the whole training set, for ε")
    steps: int | None = Field(None, ge=1, le=MOST, description="training steps, for ε")
    batch: int | None = Field(None, ge=1, le=MOST, description="sentences of one step, for ε")
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of the guarantee")

    @model_validator(mode="after")
    def _one_strength(self) -> Self:
        if (self.noise is None) == (self.epsilon is None):
            raise ValueError("give either noise or epsilon")
        if self.noise and self.noise < LEAST_NOISE:
            raise ValueError(f"noise must be 0 or at least {LEAST_NOISE:g}")
        if self.rows is not None and self.batch is not None and self.batch > self.rows:
            raise ValueError("batch cannot be larger than rows")
        if self.epsilon is not None:
            if self._training is None:
                raise ValueError("epsilon needs rows, steps and batch of the training")
            if closed_form(MOST_NOISE, *self._training) > self.epsilon:
                raise ValueError(f"no noise keeps ε below {self.epsilon:g} in such a training")
        return self

    @property
    def _training(self) -> tuple[float, int, float] | None:
        """What ε is for: the share of the rows in a step, the steps, and δ; None if not described."""
        if self.rows is None or self.steps is None or self.batch is None:
            return None
        return self.batch / self.rows, self.steps, self.delta

    @functools.cached_property
    def multiplier(self) -> float:
        """The noise multiplier, as given or computed from ε."""
        if self.noise is not None:
            return self.noise
        assert self.epsilon is not None  # checked above
        assert self._training is not None
        return noise_for(self.epsilon, *self._training)

    def noise_std(self, rule: ClientRule, examples: int) -> float | None:
        """Noise on the mean of a step's examples; local steps of SGD add up theirs, scaled by the step size.

        How the weights' own movement changes later gradients is left out. None behind adam and adamw, which divide
        by the noise too, and where a step is clipped once more with its noise.
        """
        if rule.adaptive or rule.clip is not None:
            return None
        # Every mini-batch has noise of its own; a step takes the mean over its sentences.
        sizes = [[part.stop - part.start for part in step] for step in rule.mini_batches(examples)]
        of_steps = [len(step) ** 0.5 / sum(step) for step in sizes]
        if not rule.local:
            return self.multiplier * self.clip * of_steps[0]
        reached = zip(of_steps, _effects(rule, rule.rates(examples)), strict=True)
        return self.multiplier * self.clip * math.hypot(*(std * effect for std, effect in reached))

    def without_noise(self) -> Self:
        # A copy would keep the multiplier that was computed.
        return type(self).model_validate(self.model_dump() | {"noise": 0.0, "epsilon": None})

    def guarantee(self) -> str | None:
        """ε and δ; None where the training they are for was not described."""
        if self._training is None or not self.multiplier:
            return None
        reached = spent(self.multiplier, *self._training)
        return f"{reached} at δ = {self.delta:g} after {self.steps} steps of {self.batch} of {self.rows} rows"

    def promise(self) -> Promise | None:
        if not self.multiplier:
            return None
        rate, steps, _ = self._training or (None, None, self.delta)
        return Promise(self.multiplier, rate, steps)

    def copies(self, examples: int) -> int:
        """The gradient of every single example, and a model of its own to take them from."""
        return examples + 1

    def gradient(self, generator: torch.Generator) -> Gradient:
        """Clipped and noised, of the mean over sentences of each sentence's own loss."""

        def private(model: Target, batch: Examples, targets: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
            return _private_gradient(model, batch, targets, names, self.clip, self.multiplier, generator)

        return private


def _effects(rule: ClientRule, rates: Sequence[float]) -> list[float]:
    """By how much one unit of every step's gradient moves the weights in the end, with momentum and L2 decay."""
    effects = []
    on_weight, on_momentum = 1.0, 0.0
    for rate in reversed(rates):
        on_momentum = rule.momentum * on_momentum + rate * on_weight
        effects.append(on_momentum)
        on_weight -= rule.wd * on_momentum
    return effects[::-1]


def _private_gradient(
    model: Target,
    batch: Examples,
    targets: Tensor,
    names: Sequence[str],
    clip: float,
    noise: float,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    try:
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer
    except ImportError as error:
        raise GradleakError("dpsgd needs Opacus: pip install 'gradleak[dp]'") from error
    if any("lora_magnitude_vector" in name for name, _ in model.module.named_parameters()):
        raise GradleakError("dpsgd: Opacus cannot separate what single sentences add to DoRA's adapters")
    mixing = next((name for name, part in model.module.named_modules() if isinstance(part, _BatchNorm)), None)
    if mixing is not None:
        raise GradleakError(
            f"dpsgd: {mixing} is a batch norm, which mixes the examples of a batch, so none can be clipped alone; "
            "Opacus refuses such models too: train one with group norms"
        )
    local = model.copied(frozen=False)
    wanted = set(names)
    for name, parameter in local.module.named_parameters():
        parameter.requires_grad_(name in wanted)
    named = {parameter: name for name, parameter in local.parameters().items()}
    _leave_to_layers(local)
    _capture_where_parameters_are(local)
    sampler = _sampler(local, GradSampleModule)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus' hooks on token ids, which have no gradient
        try:
            sampled = sampler(local.module, loss_reduction="mean", strict=False)
        except NotImplementedError as error:
            raise GradleakError(f"dpsgd: Opacus cannot separate examples in {model.name}: {error}") from error
        local.example_losses(batch, targets).mean().backward()
        reached = {named[p]: p for p in local.parameters().values() if _sample(p) is not None}
        _check_sentences(reached, len(batch))
        optimizer = DPOptimizer(
            torch.optim.SGD(list(reached.values()), lr=1.0),
            noise_multiplier=noise,
            max_grad_norm=clip,
            expected_batch_size=len(batch),
            generator=generator,
        )
        optimizer.pre_step()
        sampled.to_standard_module()
    return {name: p.grad.detach() for name, p in reached.items() if p.grad is not None}


def _leave_to_layers(model: Target) -> None:
    """Take from modules the parameters that a layer inside them has too, as the bias of a masked LM head.

    Opacus would take such a module for a layer of its own.
    """
    for module in model.module.modules():
        inside = {id(parameter) for child in module.children() for parameter in child.parameters()}
        for name in [name for name, own in module.named_parameters(recurse=False) if id(own) in inside]:
            delattr(module, name)


def _capture_where_parameters_are(model: Target) -> None:
    """Opacus looks at modules in training mode only. Those with parameters of their own never drop anything."""
    for module in model.module.modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.training = True


def _sampler(model: Target, library: Any) -> Any:
    """Opacus' sampler, which knows layers by their exact class, with what it lacks of those that the model has.

    Tables that are read in a way of their own are refused, as Opacus would fail on them.
    """
    known = {**library.GRAD_SAMPLERS, nn.LayerNorm: functools.partial(_norm_samples, library.GRAD_SAMPLERS)}
    names = {parameter: name for name, parameter in model.module.named_parameters() if parameter.requires_grad}
    for table in model.module.modules():
        apart = getattr(table, "relative_attention_bias", None)
        if isinstance(apart, nn.Embedding) and apart.weight in names:  # read once for all sentences
            raise _inseparable(names[apart.weight])
        if not isinstance(table, nn.Embedding) or type(table) is nn.Embedding or table.weight not in names:
            continue
        if not hasattr(table, "embed_scale"):
            raise _inseparable(names[table.weight])
        known[type(table)] = functools.partial(_scaled_samples, library.GRAD_SAMPLERS)
    return type("Sampler", (library,), {"GRAD_SAMPLERS": known})


Samplers = Mapping[Any, Callable[[Any, list[Tensor], Tensor], dict[nn.Parameter, Tensor]]]


def _scaled_samples(known: Samplers, table: Any, seen: list[Tensor], output_gradient: Tensor) -> Any:
    """A table that gives a multiple of its rows has that multiple as gradient."""
    return known[nn.Embedding](table, seen, output_gradient * table.embed_scale)


def _norm_samples(known: Samplers, norm: nn.LayerNorm, seen: list[Tensor], output_gradient: Tensor) -> Any:
    """Opacus takes it that a norm has a bias."""
    if norm.bias is not None:
        return known[nn.LayerNorm](norm, seen, output_gradient)
    normal = F.layer_norm(seen[0], norm.normalized_shape, eps=norm.eps)
    return {norm.weight: (normal * output_gradient).reshape(len(normal), -1, *norm.normalized_shape).sum(dim=1)}


def _inseparable(name: str) -> GradleakError:
    return GradleakError(
        f"dpsgd: Opacus cannot separate what single sentences add to {name}; freeze it: "
        f"frozen:parts=none,names={name}"
    )


def _sample(parameter: Tensor) -> Any:
    """What Opacus computed: one gradient per sentence."""
    return getattr(parameter, "grad_sample", None)


def _check_sentences(parameters: Mapping[str, Tensor], sentences: int) -> None:
    for name, parameter in parameters.items():
        samples = _sample(parameter)
        if isinstance(samples, list) or len(samples) != sentences:
            raise _inseparable(name)
