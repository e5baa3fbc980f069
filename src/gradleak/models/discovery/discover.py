"""The declaration of an unlisted type of models, found by structure."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gradleak.models.discovery.embeddings import find_embeddings
from gradleak.models.discovery.heads import find_head, find_logits
from gradleak.models.discovery.layers import find_layers, shape_of
from gradleak.models.discovery.roles import PLACE, find_roles
from gradleak.models.discovery.rules import find_rules
from gradleak.models.discovery.sketch import Sketch, Unclear, sketch, tasks_of
from gradleak.models.discovery.watch import differ, read
from gradleak.models.discovery.windows import with_windows
from gradleak.models.families.base import Family, Kind
from gradleak.models.tasks import Task


def found_family(config: Any) -> Family:
    tasks = tasks_of(config)
    if not tasks:
        raise Unclear("no task")
    trials = {task: sketch(config, task) for task in tasks}
    first = next(iter(trials.values()))
    kind = find_kind(first)
    path, layers = find_layers(first)
    roles = find_roles(first, layers[0], kind)
    embeddings = find_embeddings(first, layers[0])
    rules, plain = find_rules(first)
    head: dict[Task, tuple[str, ...]] = {}
    cap = scale = None
    for task, own in trials.items():
        if kind == "encoder" and task == "causal-lm":
            continue
        _, own_layers = find_layers(own)
        head[task] = find_head(own, own_layers)
        if task == "causal-lm":
            cap, scale = find_logits(own)
    parallel = None
    if roles.parallel:
        parallel = next((n for n, v in vars(config).items() if "parallel" in n and v is True), True)
    family = Family(
        name=config.model_type, kind=kind, layers=path, roles=roles.roles, head=head, **vars(embeddings),
        inputs_seen_by=roles.inputs_seen_by, parallel=parallel, rotary=roles.rotary, transposed=roles.transposed,
        rules=rules, logit_cap=cap,
    )
    if kind == 'decoder':
        family = with_windows(family, config, first)
    return family, roles.others, plain, scale


def find_kind(sketch: Sketch) -> Kind:
    """A decoder's states do not depend on what comes after them."""
    other = sketch.ids.clone()
    other[0, PLACE] = sketch.ids[0, PLACE + 1]
    with torch.no_grad():
        one, two = read(sketch.base, sketch.ids)[0], read(sketch.base, other)[0]
    return "encoder" if bool(differ(one, two)[0, :PLACE].any()) else "decoder"
