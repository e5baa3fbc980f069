"""The declaration of an unlisted type of models, found by structure."""

from __future__ import annotations

import functools
import json
from typing import Any

import torch

from gradleak.core.errors import GradleakError
from gradleak.models.adapter import layers_of
from gradleak.models.discovery.embeddings import find_embeddings
from gradleak.models.discovery.heads import find_head, find_logits
from gradleak.models.discovery.layers import find_layers, shape_of
from gradleak.models.discovery.roles import PLACE, Layer, find_roles
from gradleak.models.discovery.rules import find_rules
from gradleak.models.discovery.sketch import Sketch, Unclear, outline, sketch, tasks_of
from gradleak.models.discovery.watch import differ, read
from gradleak.models.discovery.windows import with_windows
from gradleak.models.families.base import Family, Fused, Kind
from gradleak.models.quiet import quiet
from gradleak.models.tasks import Task, text_task

MOST_LAYERS = 1000


def discover(config: Any) -> Family:
    """The declaration of the models of a configuration, as one would write it by hand.

    A small model of the kind is made and watched while it runs; nothing but the installed library's classes is used.
    What its structure does not show is an error that names it.
    """
    name = str(config.model_type)
    try:
        return _kept(name, json.dumps(config.to_dict(), sort_keys=True, default=str))
    except Unclear as error:
        raise GradleakError(
            f"models of type {name!r} are not listed, and their parts were not found by structure: {error}; "
            "--family module:NAME takes a declaration of your own"
        ) from error


@functools.lru_cache(maxsize=16)
def _kept(kind: str, values: str) -> Family:
    """Found once for every configuration: models are loaded again and again."""
    from transformers import CONFIG_MAPPING

    with quiet():
        return _examined(CONFIG_MAPPING[kind].from_dict(json.loads(values)))


def _examined(config: Any) -> Family:
    if getattr(config, "is_encoder_decoder", False):
        raise Unclear("it is an encoder with a decoder, which needs a declaration")
    if parts := [name for name in type(config).sub_configs if getattr(config, name, None) is not None]:
        raise Unclear(f"it has parts of its own for other things than text ({', '.join(parts)})")
    if int(getattr(config, "num_hidden_layers", 1)) > MOST_LAYERS:
        raise Unclear(
            f"its config.json says {config.num_hidden_layers:,} layers, more than are laid out to be compared"
        )
    tasks = tasks_of(config)
    if not tasks:
        raise Unclear("the installed transformers has no classifier and no causal language model of this type")
    try:
        return _found(config, tasks, few_heads=True)
    except Unclear:
        raise
    except Exception:  # some models cannot have few heads
        try:
            return _found(config, tasks, few_heads=False)
        except Unclear:
            raise
        except Exception as error:  # or cannot be made small at all, or take something else than tokens
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise Unclear(f"a small model of its kind does not run ({first[:160]})") from error


def _found(config: Any, tasks: list[Task], few_heads: bool) -> Family:
    trials = {task: sketch(config, task, few_heads) for task in tasks}
    first = next(iter(trials.values()))
    kind = find_kind(first)
    path, layers = find_layers(first)
    layer = find_roles(first, layers[0], kind)
    if few_heads and any(_counts_heads(where) for where in layer.roles.values()):
        whole = sketch(config, first.task, few_heads=False)  # so that numbers are not the same by chance
        layer = find_roles(whole, find_layers(whole)[1][0], kind)
    embeddings = find_embeddings(first, layers[0])
    if kind == "decoder" and embeddings.embedding_projection is not None:
        raise Unclear("it has embeddings of another width than its layers")
    rules, _ = find_rules(first)
    cap, scale = find_logits(trials["causal-lm"]) if "causal-lm" in trials and kind == "decoder" else (None, 1.0)
    family = Family(
        name=str(config.model_type),
        kind=kind,
        layers=path,
        roles=layer.roles,
        head=_heads(trials, kind),
        inputs_seen_by=layer.inputs_seen_by,
        parallel=_parallel(layer, config),
        rotary=layer.rotary,
        logit_cap=cap,
        logit_scale=scale,
        transposed=layer.transposed,
        rules=rules,
        **vars(embeddings),
    )
    _check_all_layers(family, config, first)
    return with_windows(family, config, first) if kind == "decoder" else family


def find_kind(sketch: Sketch) -> Kind:
    """A decoder's states do not depend on what comes after them."""
    other = sketch.ids.clone()
    other[0, PLACE] = sketch.ids[0, PLACE + 1]
    with torch.no_grad():
        one, two = read(sketch.base, sketch.ids)[0], read(sketch.base, other)[0]
    return "encoder" if bool(differ(one, two)[0, :PLACE].any()) else "decoder"


def _heads(trials: dict[Task, Sketch], kind: Kind) -> dict[Task, tuple[str, ...]]:
    """The heads of the tasks that are audited: decoders classify by a single matrix, encoders do not write."""
    found: dict[Task, tuple[str, ...]] = {}
    for task, own in trials.items():
        goal = text_task(task)
        head = find_head(own, find_layers(own)[1])
        by_score = goal.one_per_text and head == ("score",)
        if not goal.autoregressive if kind == "encoder" else goal.autoregressive or by_score:
            found[task] = head
    if not found:
        raise Unclear("none of its heads is one that is audited")
    return found


def _parallel(layer: Layer, config: Any) -> str | bool:
    if not layer.parallel:
        return False
    return next((name for name, value in vars(config).items() if "parallel" in name and value is True), True)


def _check_all_layers(family: Family, config: Any, first: Sketch) -> None:
    """The real model's layers, of which the sketch has the first few, have the same matrices."""
    shapes = [shape_of(layer) for layer in layers_of(outline(config, first.task).base_model, family.layers)]
    if any(shape != shapes[0] for shape in shapes):
        raise Unclear("its layers are not alike")


def _counts_heads(where: str | Fused) -> bool:
    return isinstance(where, Fused) and (where.heights is not None or where.groups is not None)
