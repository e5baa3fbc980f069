"""What a family of architectures is: a declaration of where its models keep their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gradleak.models.tasks import TASKS, Task, text_task

Kind = Literal["encoder", "decoder", "encoder-decoder"]

ROLES = ("query", "key", "value", "attention_out", "ffn_in", "ffn_out")
# Kinds of layers in which a token sees only what stands near it, as configurations name them.
NEAR = ("sliding_attention", "local")


@dataclass(frozen=True)
class Fused:
    """One block of a matrix that holds several roles side by side, such as GPT-2's query-key-value.

    It is the block `index` of `count`. Blocks of unequal height have `heights`: for each of them the name of the
    entry of the model's configuration that it is in proportion to. Where a matrix repeats all its blocks for every
    head, `groups` is the name of the entry that says how often. Where no entry says it, a number does.
    """

    path: str
    index: int
    count: int
    heights: tuple[str | int, ...] | None = None
    groups: str | int | None = None


@dataclass(frozen=True)
class Family:
    """Where the models of one Hugging Face `model_type`, which is the family's name, keep their parts.

    Paths are relative to `base_model`, those of `roles` to one layer, those of `head` to the whole model.
    A path of `layers` may have one `*`, which stands for every module of a list.
    `first_position` is the row of the position table that the first token reads, `first_position_id` what the model
    is told to make it read that row, if this is another number. `embedding_projection` is a linear module between
    embeddings and layers of another width.

    `inputs_seen_by` are the roles whose gradients show all that a layer's attention sees, and nothing else.
    `parallel` says whether the feed-forward block sees the layer's input, as the attention does, and not what the
    attention made of it, or names the entry of the configuration that says so. `rotary` says that positions turn
    queries and keys. `window` names the entry that says how far back tokens see in layers whose kind, listed under
    `layer_kinds`, is one of NEAR, or in all layers if the configuration lists no kinds. `window_mask` is a buffer of
    a layer that holds who sees whom, where the model does not leave that to the mask it is given. `logit_cap` names
    the entry with the largest logit of a language model, `logit_scale` is what its logits are multiplied by, or names
    the entry with that.

    `transposed` are classes of linear modules that store (inputs, outputs), where torch stores (outputs, inputs).
    `rules` names for further classes of modules how gradients are read off them: a function as those of
    `gradleak.matching.rules`, or where it is, "module:function". Common layers need none, and what has none is
    matched by plain autograd, which is slow. `refused` are parts that some models have and that are not supported,
    with what is said of them. `variant` names an entry of the configuration, and the roles that are elsewhere in
    models where it is true.

    An encoder-decoder reads two texts. Its `sides` are two families, of the encoder and of the decoder; their `base`
    is the module that runs, and all paths are still relative to `base_model`. Only the first `layers_alone` layers of
    a side see nothing but its own text. Models that count positions themselves and cannot be told them have a module
    where ours can be put in: `position_counter` is a table, `position_bias` a layer's attention whose scores depend
    on how far apart tokens stand.
    """

    name: str
    kind: Kind
    token_embedding: str
    layers: str
    roles: Mapping[str, str | Fused]
    head: Mapping[Task, tuple[str, ...]]
    positions: str | None = None
    first_position: int = 0
    first_position_id: int | None = None
    token_types: str | None = None
    embedding_norm: str | None = None
    embedding_projection: str | None = None
    inputs_seen_by: tuple[str, ...] = ()
    parallel: str | bool = False
    rotary: bool = False
    window: str | None = None
    layer_kinds: str = "layer_types"
    window_mask: str | None = None
    logit_cap: str | None = None
    logit_scale: str | float = 1.0
    transposed: tuple[str, ...] = ()
    rules: Mapping[str, str | Callable[..., Any]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    variant: tuple[str, Mapping[str, str | Fused]] | None = None
    sides: tuple[Family, ...] = ()
    base: str = ""
    layers_alone: int | None = None
    position_counter: str | None = None
    position_bias: str | None = None

    def head_of(self, task: Task) -> tuple[str, ...]:
        """Where the head of a task is."""
        return self.head[text_task(task).head]

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What its models can be trained for: every task whose head is declared."""
        return tuple(task for task in TASKS if text_task(task).head in self.head)
