"""A client's rule in words. Loads without torch."""

from __future__ import annotations

from gradleak.core.text import counted
from gradleak.updates.client_rule import HALF, ClientRule

OPTIMISERS = {"fedsgd": "SGD", "fedavg": "SGD", "adam": "Adam", "adamw": "AdamW"}


def optimiser(rule: ClientRule) -> str:
    """
    >>> optimiser(ClientRule.parse("adamw")), optimiser(ClientRule.parse("fedavg:momentum=0.9"))
    ('AdamW', 'SGD with momentum 0.9')
    """
    return OPTIMISERS[rule.name] + (f" with momentum {rule.momentum:g}" if rule.momentum else "")


def training(rule: ClientRule, example: str) -> list[str]:
    """How local steps are taken, of examples that are called so.

    >>> training(ClientRule.parse("adamw:steps=3,batch=4,clip=1"), "sentence")
    ['4 sentences a step', 'step size 5e-05', 'weight decay 0.01', 'gradients clipped to norm 1']
    """
    size = counted(rule.batch, example)
    several = f"{rule.accumulate} mini-batches of {size} a step"
    found = [] if rule.steps is not None else [counted(rule.epochs, "epoch")]
    found += [f"{size} a step" if rule.accumulate == 1 else several, f"step size {rule.lr:g}{_schedule(rule)}"]
    if rule.adaptive and (rule.betas, rule.eps) != ((0.9, 0.999), 1e-8):
        found.append(f"betas {rule.betas[0]:g} and {rule.betas[1]:g}, epsilon {rule.eps:g}")
    if rule.wd:
        kind = "weight decay" if rule.name == "adamw" else "L2 decay"
        found.append(f"{kind} {rule.wd:g}" + (" except on biases and norms" if rule.decay == "matrices" else ""))
    return found + changes(rule)


def changes(rule: ClientRule) -> list[str]:
    """What any rule may do to its gradients and numbers.

    >>> changes(ClientRule.parse("fedsgd:wire=fp16,loss=completion"))
    ["only answers are predicted: assistants' turns, or what follows '### Response:'", 'sent in fp16']
    """
    answers = f"only answers are predicted: assistants' turns, or what follows {rule.marker!r}"
    found = [answers] if rule.loss == "completion" else []
    if rule.pack is not None:
        how = "cut wherever a row ends" if rule.packing == "wrapped" else "each whole in one"
        sees = "which see one another" if rule.attends_across else "which do not see one another"
        found.append(f"texts, {sees}, packed into rows of {rule.pack} tokens, {how}")
    found += [f"gradients clipped to norm {rule.clip:g}"] if rule.clip is not None else []
    return found + half_precision(rule)


def half_precision(rule: ClientRule) -> list[str]:
    """Which numbers have few digits."""
    found = [f"computed in {rule.precision}"] if rule.precision in HALF else []
    return found + ([f"sent in {rule.wire}"] if rule.wire in HALF else [])


def _schedule(rule: ClientRule) -> str:
    falls = {"constant": "", "linear": "decays linearly to zero", "cosine": "decays to zero by a cosine"}
    rises = f"rises over {counted(rule.warmup, 'step')}" if rule.warmup else ""
    both = " and ".join(filter(None, (rises, falls[rule.schedule])))
    return f" that {both}" if both else ""
