"""gradleak measures how much private text can be read back from federated-learning updates.

The flow is one line: a client makes an update, an attack reads it, the reconstruction is scored.

>>> import gradleak
>>> gradleak.__version__.count(".")
2
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from gradleak.core.errors import GradleakError
from gradleak.version import __version__

# Some virtual machines announce tile instructions (AMX) and die of them, in the first product of half precision.
# Nothing here is faster by them; whoever wants them sets the variable.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

if TYPE_CHECKING:
    from gradleak.attacks.base import Attack, AttackContext, AttackOptions, Reconstruction, Sentence
    from gradleak.attacks.contains.result import Candidate, Containment
    from gradleak.attacks.contains.run import contains
    from gradleak.attacks.inversion.train_text import train_inverter
    from gradleak.attacks.run import attack
    from gradleak.audits.results import Results, load_results
    from gradleak.audits.run import audit
    from gradleak.audits.spec import AuditSpec, load_spec
    from gradleak.clients.images import ImageClient
    from gradleak.clients.text import Client
    from gradleak.core.budget import Budget
    from gradleak.core.secret import Secret
    from gradleak.data.pictures import Pictures, read_pictures
    from gradleak.data.texts import Row
    from gradleak.defenses.base import Defense
    from gradleak.experiments.checkpoints.run import audit_checkpoints
    from gradleak.experiments.experiment import RunOptions
    from gradleak.experiments.frontier.run import frontier
    from gradleak.experiments.frontier.spec import FrontierSpec, load_frontier
    from gradleak.experiments.map.run import leak_map
    from gradleak.experiments.recipes.recipe import load_recipe
    from gradleak.experiments.recipes.run import reproduce
    from gradleak.experiments.runner.cell import Limits
    from gradleak.experiments.sweep.run import sweep
    from gradleak.experiments.sweep.spec import SweepSpec, load_sweep
    from gradleak.experiments.utility import utility
    from gradleak.models.families.base import Family
    from gradleak.models.image import ImageModel
    from gradleak.models.load import load_model
    from gradleak.models.text import TextModel
    from gradleak.report.annex.write import write_annex
    from gradleak.report.build import write_report
    from gradleak.scoring.metric import Metric
    from gradleak.scoring.score import score
    from gradleak.scoring.score_images import score_images
    from gradleak.updates.update import Update, load_update
    from gradleak.verdict.judge import judge

# Imported on first use: torch and transformers take seconds to load, and `gradleak --help` needs neither.
_HOMES = {
    "gradleak.attacks.base": ("Attack", "AttackContext", "AttackOptions", "Reconstruction", "Sentence"),
    "gradleak.attacks.contains.result": ("Candidate", "Containment"),
    "gradleak.attacks.contains.run": ("contains",),
    "gradleak.attacks.inversion.train_text": ("train_inverter",),
    "gradleak.attacks.run": ("attack",),
    "gradleak.audits.results": ("Results", "load_results"),
    "gradleak.audits.run": ("audit",),
    "gradleak.audits.spec": ("AuditSpec", "load_spec"),
    "gradleak.clients.images": ("ImageClient",),
    "gradleak.clients.text": ("Client",),
    "gradleak.core.budget": ("Budget",),
    "gradleak.core.secret": ("Secret",),
    "gradleak.data.pictures": ("Pictures", "read_pictures"),
    "gradleak.data.texts": ("Row",),
    "gradleak.defenses.base": ("Defense",),
    "gradleak.experiments.checkpoints.run": ("audit_checkpoints",),
    "gradleak.experiments.experiment": ("RunOptions",),
    "gradleak.experiments.frontier.run": ("frontier",),
    "gradleak.experiments.frontier.spec": ("FrontierSpec", "load_frontier"),
    "gradleak.experiments.map.run": ("leak_map",),
    "gradleak.experiments.recipes.recipe": ("load_recipe",),
    "gradleak.experiments.recipes.run": ("reproduce",),
    "gradleak.experiments.runner.cell": ("Limits",),
    "gradleak.experiments.sweep.run": ("sweep",),
    "gradleak.experiments.sweep.spec": ("SweepSpec", "load_sweep"),
    "gradleak.experiments.utility": ("utility",),
    "gradleak.models.families.base": ("Family",),
    "gradleak.models.image": ("ImageModel",),
    "gradleak.models.load": ("load_model",),
    "gradleak.models.text": ("TextModel",),
    "gradleak.report.annex.write": ("write_annex",),
    "gradleak.report.build": ("write_report",),
    "gradleak.scoring.metric": ("Metric",),
    "gradleak.scoring.score": ("score",),
    "gradleak.scoring.score_images": ("score_images",),
    "gradleak.updates.update": ("Update", "load_update"),
    "gradleak.verdict.judge": ("judge",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - grouped by what they are for
    "GradleakError",
    "__version__",
    # one audit
    "AuditSpec",
    "Results",
    "audit",
    "load_results",
    "load_spec",
    "judge",
    "write_annex",
    "write_report",
    # its steps
    "Budget",
    "Candidate",
    "Client",
    "Containment",
    "ImageClient",
    "ImageModel",
    "Pictures",
    "Reconstruction",
    "Row",
    "Secret",
    "Sentence",
    "TextModel",
    "Update",
    "attack",
    "contains",
    "load_model",
    "load_update",
    "read_pictures",
    "score",
    "score_images",
    "train_inverter",
    # many audits
    "FrontierSpec",
    "Limits",
    "RunOptions",
    "SweepSpec",
    "audit_checkpoints",
    "frontier",
    "leak_map",
    "load_frontier",
    "load_recipe",
    "load_sweep",
    "reproduce",
    "sweep",
    "utility",
    # to extend it
    "Attack",
    "AttackContext",
    "AttackOptions",
    "Defense",
    "Family",
    "Metric",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'gradleak' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
