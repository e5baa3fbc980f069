"""A small model of an architecture with drawn weights, made from a configuration alone, to be watched while it runs.

It has a few layers and narrow matrices, so that it costs next to nothing whatever the size of the real model, and it
computes in float64, so that "the same" and "not the same" are far apart. Configurations are hostile: every size is
bounded before anything is built, and only classes of the installed library are ever built.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.models.tasks import Task

LAYERS, HEAD, VOCABULARY, POSITIONS = 4, 16, 97, 64
# Tokens that a sketch reads.
TOKENS = 8
MOST_PARAMETERS = 60_000_000
# Of matrices: attention that looks at one token alone would hide what the others do.
SPREAD = 0.6
# Entries of configurations that are widths, and shrink with that of a head.
_WIDTHS = re.compile(r"(^|_)(hidden_size|size|dim|embd|inner|width|d_model|d_inner|d_kv|kv_channels|scalar)$|^d_ff$")
_NO_WIDTHS = re.compile(r"vocab|window|chunk|kernel|position|patch|image|batch|group|bucket|axial|num_")


class Unclear(Exception):  # noqa: N818 - what is missing is said to the user by whoever asked
    """Something of a model that its structure does not show, in words."""


@dataclass(frozen=True)
class Sketch:
    """A small model for one task, and the tokens that it reads."""

    module: Any
    task: Task
    ids: Tensor

    @property
    def base(self) -> Any:
        return self.module.base_model

    @property
    def config(self) -> Any:
        return self.module.config

    def path_of(self, module: nn.Module, inside: nn.Module | None = None) -> str:
        """The module's path from the base model, or from another module."""
        return next(name for name, each in (inside or self.base).named_modules() if each is module)


def tasks_of(config: Any) -> list[Task]:
    """The tasks that the installed library has a class of such models for."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    kinds: dict[Task, Any] = {"classification": AutoModelForSequenceClassification, "causal-lm": AutoModelForCausalLM}
    return [task for task, kind in kinds.items() if type(config) in kind._model_mapping]


def sketch(config: Any, task: Task, **changes: Any) -> Sketch:
    """The small model of a configuration, some entries of which may be set to other values."""
    narrow = small_config(config, HEAD)
    for name, value in changes.items():
        setattr(narrow, name, value)
    with torch.device("meta"):
        outline = _of_config(narrow, task)
    if sum(each.numel() for each in (*outline.parameters(), *outline.buffers())) > MOST_PARAMETERS:
        raise Unclear("a small model of its kind could not be made: its config.json asks for too large parts")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = _of_config(narrow, task)
        module = module.double().eval()
        _draw(module)
    return Sketch(module, task, _tokens(narrow))


def outline(config: Any, task: Task) -> Any:
    """The real model without memory for its weights."""
    with torch.device("meta"):
        return _of_config(copy.deepcopy(config), task)


def small_config(config: Any, head: int) -> Any:
    """The same architecture with few layers, a small vocabulary and narrow heads."""
    small = copy.deepcopy(config)
    layers = int(getattr(small, "num_hidden_layers", 1))
    few = min(layers, LAYERS)
    for name, value in list(vars(small).items()):
        if isinstance(value, list | tuple) and len(value) == layers > few:
            setattr(small, name, value[:few])
    if few < layers:
        small.num_hidden_layers = few
    if int(getattr(small, "vocab_size", 0)) > VOCABULARY:
        small.vocab_size = VOCABULARY
    for name, value in list(vars(small).items()):
        if name.endswith("_token_id") and isinstance(value, int) and value >= VOCABULARY:
            setattr(small, name, None)
        if name in ("max_position_embeddings", "n_positions", "n_ctx") and isinstance(value, int):
            setattr(small, name, min(value, POSITIONS))
    shrink = _head_width(small) // head
    if shrink > 1:
        for name, value in list(vars(small).items()):
            if type(value) is int and _WIDTHS.search(name) and not _NO_WIDTHS.search(name) and value % shrink == 0:
                setattr(small, name, value // shrink)
    return small


def _head_width(config: Any) -> int:
    """The width of a head, or 0 where it is no multiple of the one that sketches have."""
    width, heads = getattr(config, "hidden_size", None), getattr(config, "num_attention_heads", None)
    if not isinstance(width, int) or not isinstance(heads, int) or not 0 < heads <= width or width % heads:
        return 0
    own = getattr(config, "head_dim", None)
    whole = own if isinstance(own, int) and own > 0 else width // heads
    return whole if whole % HEAD == 0 else 0


def _of_config(config: Any, task: Task) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    kind = AutoModelForSequenceClassification if task == "classification" else AutoModelForCausalLM
    return kind.from_config(config, attn_implementation="eager", trust_remote_code=False)


def _draw(module: nn.Module) -> None:
    """Weights under which nothing is a special case: no zeros, no ones, no two the same."""
    generator = torch.Generator().manual_seed(0)
    tables = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)}
    with torch.no_grad():
        for _, parameter in sorted(module.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if parameter.dim() < 2:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(noise if id(parameter) in tables else SPREAD * noise / parameter.shape[-1] ** 0.5)
            parameter.requires_grad_(True)


def _tokens(config: Any) -> Tensor:
    special = {value for name, value in vars(config).items() if name.endswith("_token_id") and isinstance(value, int)}
    usual = [token for token in range(5, int(config.vocab_size)) if token not in special]
    if len(usual) < TOKENS:
        raise Unclear(f"its vocabulary of {int(config.vocab_size)} tokens is too small to try anything with")
    return torch.tensor([usual[:: max(1, len(usual) // TOKENS)][:TOKENS]])


@contextmanager
def hooked(handles: list[Any]) -> Iterator[None]:
    """Hooks that are there for one run."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
