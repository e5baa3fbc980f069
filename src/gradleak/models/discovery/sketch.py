"""A small model of an architecture with drawn weights, made from a configuration alone, to be watched while it runs.

It has a few layers and narrow matrices, so that it costs next to nothing whatever the size of the real model, and it
computes in float64, so that "the same" and "not the same" are far apart. Configurations are hostile: every size is
bounded before anything is built, and only classes of the installed library are ever built.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.models.tasks import Task, text_task, text_tasks

LAYERS, HEAD, VOCABULARY, POSITIONS = 4, 8, 97, 64
MOST_HEADS = 64
# Entries that say how many heads keys have.
KEY_HEADS = ("num_key_value_heads", "num_kv_heads")
# Tokens that a sketch reads.
TOKENS = 8
MOST_PARAMETERS = 60_000_000
# Of matrices: attention that looks at one token alone would hide what the others do.
SPREAD = 0.6
# Entries of configurations that are widths, and shrink with that of a head.
_WIDTHS = re.compile(r"(^|_)(size|dim|embd|inner|width|channels|scalar)$|^d_(model|inner|kv|ff)$")
_OF_HEADS = re.compile(r"head|d_kv|rotary|rope|channels|scalar")
_FREE = re.compile(r"intermediate|inner|ffn|d_ff")
_NO_WIDTHS = re.compile(r"vocab|window|chunk|kernel|position|patch|image|batch|group|bucket|axial|num_|block")


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
    """The tasks with a head of their own that the installed library has a class of such models for."""
    return [
        each.name
        for each in text_tasks()
        if each.name == each.head and type(config) in _kind(each.name)._model_mapping
    ]


def sketch(config: Any, task: Task, few_heads: bool = True, changes: Mapping[str, Any] | None = None) -> Sketch:
    """The small model of a configuration, some entries of which may be set to other values.

    It has few heads, in the same proportion of queries to keys, or as many as the real model.
    """
    small = small_config(config, few_heads)
    for name, value in (changes or {}).items():
        setattr(small, name, value)
    with torch.device("meta"):
        laid_out = _of_config(small, task)
    if sum(each.numel() for each in (*laid_out.parameters(), *laid_out.buffers())) > MOST_PARAMETERS:
        raise Unclear("a small model of its kind could not be made: its config.json asks for too large parts")
    _refuse_parts(laid_out)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = _of_config(small, task).double().eval()
        _draw(module)
    return Sketch(module, task, _tokens(small))


def _refuse_parts(module: nn.Module) -> None:
    """What no declaration can describe, in words that say what it is."""
    for name, each in module.named_modules():
        if isinstance(each, nn.Conv1d):
            raise Unclear(f"{name} is a convolution, which mixes tokens beside attention, or in its place")
        if any(parameter.dim() == 3 for parameter in each.parameters(recurse=False)):
            raise Unclear(f"{name} holds stacks of matrices, as where tokens choose among experts")


def outline(config: Any, task: Task) -> Any:
    """The real model without memory for its weights."""
    with torch.device("meta"):
        return _of_config(copy.deepcopy(config), task)


def small_config(config: Any, few_heads: bool = True) -> Any:
    """The same architecture with few layers, a small vocabulary and few, narrow heads."""
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
            setattr(small, name, 0)
        if name in ("max_position_embeddings", "n_positions", "n_ctx") and isinstance(value, int):
            setattr(small, name, min(value, POSITIONS))
    _narrow(small, few_heads)
    return small


def _narrow(small: Any, few_heads: bool) -> None:
    """Make heads narrow and few; what is no multiple of theirs stays, but the width of feed-forward blocks."""
    width, heads = getattr(small, "hidden_size", None), getattr(small, "num_attention_heads", None)
    if not isinstance(width, int) or not isinstance(heads, int) or not 0 < heads <= width or width % heads:
        return
    own = getattr(small, "head_dim", None)
    head = own if isinstance(own, int) and own > 0 else width // heads
    thinner = head // HEAD if head % HEAD == 0 else 1
    fewer = 1
    if few_heads:
        shared = {name: count for name in KEY_HEADS if type(count := getattr(small, name, None)) is int and count > 0}
        keys = min((2, *shared.values()))
        least = keys if not shared or heads in shared.values() else 2 * keys
        left = next((count for count in range(least, MOST_HEADS, keys) if heads % count == 0), heads)
        fewer = heads // left
        small.num_attention_heads = left
        for name, count in shared.items():
            setattr(small, name, left if count == heads else keys)
    for name, value in list(vars(small).items()):
        if type(value) is not int or not _WIDTHS.search(name) or _NO_WIDTHS.search(name):
            continue
        factor = thinner if _OF_HEADS.search(name) else thinner * fewer
        if "rotary" in name:  # positions turn numbers in pairs
            setattr(small, name, max(2, value // factor // 2 * 2))
        elif value % factor == 0:
            setattr(small, name, value // factor)
        elif _FREE.search(name):
            setattr(small, name, 8 * max(1, value // (8 * factor)))


def _of_config(config: Any, task: Task) -> Any:
    return _kind(task).from_config(config, attn_implementation="eager", trust_remote_code=False)


def _kind(task: Task) -> Any:
    import transformers

    return getattr(transformers, text_task(task).auto_class)


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
    if not isinstance(getattr(config, "vocab_size", None), int):
        raise Unclear("its config.json has no vocabulary")
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
