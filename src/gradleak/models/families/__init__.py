"""Where each supported architecture keeps its parts.

A family is a declaration, not code: dotted paths from the model's base. Attacks and
selections speak in roles ("query", "ffn_out") and never in pieces of parameter names. Another package adds a family
by `FAMILIES.register(family)`, or by an entry point of the group `gradleak.families`.
"""

from __future__ import annotations

from gradleak.core.errors import GradleakError
from gradleak.core.registry import Registry
from gradleak.models.families.base import ROLES, Family, Fused, Kind
from gradleak.models.tasks import Task

__all__ = ["FAMILIES", "ROLES", "Family", "Fused", "Kind", "Task", "family_of", "known_roles"]

FAMILIES: Registry[Family] = Registry(
    "family",
    {
        "albert": "gradleak.models.families.albert:ALBERT",
        "bart": "gradleak.models.families.bart:BART",
        "bert": "gradleak.models.families.bert:BERT",
        "camembert": "gradleak.models.families.camembert:CAMEMBERT",
        "deberta-v2": "gradleak.models.families.deberta_v2:DEBERTA_V2",
        "distilbert": "gradleak.models.families.distilbert:DISTILBERT",
        "electra": "gradleak.models.families.electra:ELECTRA",
        "gemma": "gradleak.models.families.gemma:GEMMA",
        "gemma2": "gradleak.models.families.gemma2:GEMMA2",
        "gemma3_text": "gradleak.models.families.gemma3_text:GEMMA3_TEXT",
        "gpt2": "gradleak.models.families.gpt2:GPT2",
        "gpt_neo": "gradleak.models.families.gpt_neo:GPT_NEO",
        "gpt_neox": "gradleak.models.families.gpt_neox:GPT_NEOX",
        "llama": "gradleak.models.families.llama:LLAMA",
        "mistral": "gradleak.models.families.mistral:MISTRAL",
        "modernbert": "gradleak.models.families.modernbert:MODERNBERT",
        "mpnet": "gradleak.models.families.mpnet:MPNET",
        "mt5": "gradleak.models.families.mt5:MT5",
        "opt": "gradleak.models.families.opt:OPT",
        "phi3": "gradleak.models.families.phi3:PHI3",
        "qwen2": "gradleak.models.families.qwen2:QWEN2",
        "qwen3": "gradleak.models.families.qwen3:QWEN3",
        "roberta": "gradleak.models.families.roberta:ROBERTA",
        "smollm3": "gradleak.models.families.smollm3:SMOLLM3",
        "t5": "gradleak.models.families.t5:T5",
        "umt5": "gradleak.models.families.umt5:UMT5",
        "xlm-roberta": "gradleak.models.families.xlm_roberta:XLM_ROBERTA",
    },
    base=Family,
    group="gradleak.families",
    instances=True,
)


def family_of(model_type: str) -> Family:
    """The family of a Hugging Face `model_type`, or an error that lists those supported."""
    if model_type not in FAMILIES:  # asked first: a model's files must not name a module to import
        raise GradleakError(
            f"models of type {model_type!r} are not supported; supported families: {', '.join(FAMILIES.names())}"
        )
    return FAMILIES.get(model_type)


def known_roles() -> list[str]:
    """The modules of a layer that any family knows, of those too that were named by their path."""
    roles = dict.fromkeys(ROLES)
    for family in (*(family for _, family in FAMILIES.entries()), *FAMILIES.loaded()):
        if isinstance(family, Family):  # a broken package is reported when its models are loaded
            roles.update(dict.fromkeys(family.roles))
    return list(roles)
