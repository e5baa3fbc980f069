"""A module made from a checkpoint: every weight is the checkpoint's, but those of a new head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.core.errors import GradleakError
from gradleak.core.memory import free_memory
from gradleak.core.tensor_files import quoted
from gradleak.core.text import enumerated
from gradleak.models.checkpoint import Checkpoint
from gradleak.models.discovery.choose import chosen_family
from gradleak.models.families import FAMILIES, Family, Task, family_of
from gradleak.models.four_bit import FourBit
from gradleak.models.loading import Loading
from gradleak.models.objective import Objective
from gradleak.models.origin import Origin
from gradleak.models.stored import Kept, put_back, stand_ins, trained_in_fp32
from gradleak.models.tasks import text_task

MOST_CLASSES = 100_000
# Layers that can be laid out in no time, whatever the weight files hold.
FEW_LAYERS = 100
# A model is built to see which tensors it lacks if it has at most TIMES as many parameters as its files, or SMALL.
TIMES, SMALL = 4, 4_000_000
# The gradients, the update and its copies take as much as the head again.
HEAD_COPIES = 4
# Entries of a config.json that would steer the library to other files or to code.
_STEERING = (
    "auto_map",
    "transformers_weights",
    "fusion_config",
    "kernel_config",
    "quantization_config",
    "name_or_path",
    "_name_or_path",
)
# What old checkpoints hold beside the weights, and the pooler of an encoder whose head has none.
_BUFFERS = (".masked_bias", ".position_ids", ".inv_freq", ".attn.bias")
_UNUSED = "pooler"
PACKED = "Its frozen matrices stay in 4 bits, as they were saved; all is computed in fp32."
STORED = "Its frozen weights stay in half precision, as they were saved; all is computed in fp32."


def built(checkpoint: Checkpoint, family: Family, task: Task, trained: Objective, how: Loading) -> tuple[Any, Origin]:
    """The module in fp32 and which of its parameters are new; whatever else is missing or differs is an error."""
    folder = checkpoint.folder
    config = _config(checkpoint, task, how.num_labels)
    tensors = checkpoint.tensors(how.progress, as_saved=how.frozen)
    layers = int(getattr(config, "num_hidden_layers", 1))
    if layers > max(FEW_LAYERS, len(tensors)):
        raise GradleakError(
            f"the config.json in {folder} says {layers:,} layers, its weight files hold {len(tensors)} tensors"
        )
    outline = _outline(config, task)
    new = not trained.has_head_of(task) or how.num_labels is not None
    head = _head_parameters(outline, family, task)
    check_sizes(checkpoint, outline, head, tensors)
    if trained != Objective() and not trained.has_head_of(task):  # a head of the same name may be of something else
        outside = tuple(f"{path}." for path in family.head_of(task) if not in_base(outline, path))
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(outside)}
    module, drawn, left_over = loaded(checkpoint, outline, config, tensors, head if new else set(), how.head_seed)
    remarks = _left_over(checkpoint, module, left_over, family, trained, how)
    if any(isinstance(part, Kept) for part in module.modules()):
        remarks = (*remarks, PACKED if checkpoint.four_bit else STORED)
    module.config.problem_type = text_task(task).problem_type  # as it is audited, so it is saved
    return module, Origin(drawn, how.head_seed, remarks)


def loaded(
    checkpoint: Checkpoint,
    outline: Any,
    config: Any,
    tensors: Mapping[str, Tensor | FourBit],
    new: set[str],
    seed: int,
) -> tuple[Any, tuple[str, ...], list[str]]:
    """The module with the weights, the names of those that were drawn, and what it has no place for.

    All is fp32 but what is frozen and stays as it was saved.

    Only parameters in `new` may be missing or have another shape; these are drawn from the seed.
    """
    given, stored = stand_ins(tensors)
    module, info = type(outline).from_pretrained(
        None,
        config=config,
        state_dict=given,
        attn_implementation="eager",
        dtype=torch.float32,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # judged below
    )
    other_shapes = {name: (list(held), list(asked)) for name, held, asked in info["mismatched_keys"]}
    # What is counted, such as the steps of a batch norm, decides nothing.
    counters = {name for name, buffer in module.named_buffers() if not buffer.is_floating_point()}
    lacking = (set(info["missing_keys"]) | other_shapes.keys()) - counters
    named = [*dict(module.named_parameters()), *dict(module.named_buffers())]  # a tied matrix once
    _refuse_lacking(checkpoint, [name for name in named if name in lacking - new], other_shapes)
    put_back(module, stored)
    _draw(module, lacking, config, seed)
    module.name_or_path = module.config.name_or_path = str(checkpoint.folder)
    left_over = [name for name in sorted(info["unexpected_keys"]) if not name.endswith(_BUFFERS)]
    return trained_in_fp32(module), tuple(sorted(lacking)), left_over


def family_for(checkpoint: Checkpoint, how: Loading) -> Family:
    """The declaration that a checkpoint is loaded by: one's own, the listed one, or one found by structure."""
    from transformers import CONFIG_MAPPING

    kind = checkpoint.about.model_type
    if how.family is None and (kind in FAMILIES or kind not in CONFIG_MAPPING):
        return family_of(kind)
    return chosen_family(_config(checkpoint, "causal-lm", None), how.family)


# --- before anything is built ---------------------------------------------------------------------------


def _config(checkpoint: Checkpoint, task: Task, num_labels: int | None) -> Any:
    """The library's configuration. Layers are counted first: it lists them one by one."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[checkpoint.about.model_type]
    for key in ("num_hidden_layers", kind.attribute_map.get("num_hidden_layers", "num_hidden_layers")):
        count = checkpoint.config.get(key, 1)
        if type(count) is not int or not 1 <= count <= 1_000_000:
            said = f"{count:,}" if type(count) is int else repr(count)[:40]
            raise GradleakError(f"{checkpoint.folder / 'config.json'}: {key}: a model cannot have {said} layers")
    goal = text_task(task)
    asked = goal.configured_classes(num_labels)
    check_classes(asked, least=goal.least_classes)
    return library_config(checkpoint, asked, listed=not goal.predicts_tokens)


def library_config(checkpoint: Checkpoint, num_labels: int | None, listed: bool = True) -> Any:
    """The library's configuration, without what would steer it elsewhere; it lists classes one by one."""
    from transformers import CONFIG_MAPPING

    values = {name: value for name, value in checkpoint.config.items() if name not in _STEERING}
    check_classes(values.get("num_labels"), least=1)
    extra = {} if num_labels is None else {"num_labels": num_labels}
    config = CONFIG_MAPPING[checkpoint.about.model_type].from_dict(values, **extra)
    if listed:
        check_classes(config.num_labels, least=1)
    return config


def check_classes(count: object, least: int = 2) -> None:
    """Refuse what cannot be a number of classes; None is none that was given."""
    if count is not None and (type(count) is not int or not least <= count <= MOST_CLASSES):
        said = f"{count:,}" if type(count) is int else repr(count)[:40]
        raise GradleakError(f"a classifier has 2 to {MOST_CLASSES:,} classes, not {said}")


def _outline(config: Any, task: Task) -> Any:
    """The module without memory for its weights."""
    import transformers

    kind: Any = getattr(transformers, text_task(task).auto_class)
    with torch.device("meta"):
        return kind.from_config(config, attn_implementation="eager", trust_remote_code=False)


def _head_parameters(module: Any, family: Family, task: Task) -> set[str]:
    """The names of the head's parameters, but not of those it shares with the embeddings."""
    inside = [module.get_submodule(path) for path in family.head_of(task)]
    owned = {id(parameter) for part in inside for parameter in part.parameters()}
    return {name for name, parameter in module.named_parameters() if id(parameter) in owned} - {
        name for name in module.state_dict() if name.endswith(f"{family.token_embedding}.weight")
    }


def check_sizes(
    checkpoint: Checkpoint, outline: nn.Module, head: set[str], tensors: Mapping[str, Tensor | FourBit]
) -> None:
    """Refuse a model far larger than its weights before it takes any memory, and a head that has no room."""
    sizes = {name: parameter.numel() for name, parameter in outline.named_parameters()}
    heads = sum(sizes[name] for name in head)
    asked = sum(sizes.values()) - heads + sum(buffer.numel() for buffer in outline.buffers())
    held = sum(tensor.numel() for tensor in tensors.values())
    if asked > max(TIMES * held, SMALL):
        raise GradleakError(
            f"the config.json in {checkpoint.folder} describes a model of {asked:,} parameters, "
            f"its weight files hold {held:,}"
        )
    free = free_memory(torch.device("cpu"))
    if heads > held and 4 * HEAD_COPIES * heads > free:
        raise GradleakError(
            f"the head of {checkpoint.folder} has {heads:,} parameters and needs "
            f"{4 * HEAD_COPIES * heads / 1e9:,.2f} GB of memory; {free / 1e9:,.2f} GB are free"
        )


# --- after it was loaded --------------------------------------------------------------------------------


def _refuse_lacking(
    checkpoint: Checkpoint, names: list[str], other_shapes: Mapping[str, tuple[list[int], list[int]]]
) -> None:
    if not names:
        return
    where = f"the checkpoint in {checkpoint.folder} is not the model that its config.json describes"
    first, *others = names
    if first in other_shapes:
        held, asked = other_shapes[first]
        more = f" ({len(others)} more are wrong or missing)" if others else ""
        raise GradleakError(f"{where}: {quoted(first)} has shape {held}, its config.json asks for {asked}{more}")
    verb = f"and {len(others)} more are" if others else "is"
    raise GradleakError(f"{where}: {quoted(first)} {verb} not in its weight files")


def _left_over(
    checkpoint: Checkpoint, module: Any, names: list[str], family: Family, trained: Objective, how: Loading
) -> tuple[str, ...]:
    """What is said of tensors that the model has no place for; those inside its layers mean another model."""
    refuse_inside(checkpoint, module, names)
    heads = [name for name in names if _first(module, name) != _UNUSED]
    if not heads or trained.other is not None:
        return ()
    count = f"{quoted(heads[0])}" + (f" and {len(heads) - 1} more" if len(heads) > 1 else "")
    if trained.task is None and how.task is None:
        ways = [f"--task {task}" for task in family.tasks]
        raise GradleakError(
            f"the checkpoint in {checkpoint.folder} holds the head of another objective ({count}); "
            f"{enumerated(ways).replace(' and ', ' or ')} audits it with a new one"
        )
    return (f"Left out of the model, as they are no part of it: {count}.",)


def refuse_inside(checkpoint: Checkpoint, module: Any, names: list[str]) -> None:
    """Refuse tensors inside the model's layers that it has no place for."""
    inside = [name for name in names if in_base(module, name)]
    if inside:
        more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
        raise GradleakError(
            f"the checkpoint in {checkpoint.folder} is not the model that its config.json describes: "
            f"its weight files hold {quoted(inside[0])}{more}, which its config.json has no place for"
        )


def _first(module: Any, name: str) -> str:
    return name.removeprefix(f"{module.base_model_prefix}.").partition(".")[0]


def in_base(module: Any, name: str) -> bool:
    """Whether a tensor belongs to the model without its head."""
    return _first(module, name) in {child for child, _ in module.base_model.named_children()}


def _draw(module: Any, names: set[str], config: Any, seed: int) -> None:
    """Initialise parameters the checkpoint lacks: the same numbers for the same seed, whatever the version."""
    generator = torch.Generator().manual_seed(seed)
    scale = float(getattr(config, "initializer_range", 0.02))
    norms = {id(each.weight) for each in module.modules() if isinstance(each, nn.LayerNorm)}
    for name, parameter in sorted(module.named_parameters()):
        if name not in names:
            continue
        with torch.no_grad():
            if id(parameter) in norms:  # at zero nothing would get through
                parameter.fill_(1.0)
            elif parameter.dim() < 2:
                parameter.zero_()
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
