"""XLM-RoBERTa: RoBERTa over a vocabulary of many languages."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.roberta import ROBERTA

XLM_ROBERTA = replace(ROBERTA, name="xlm-roberta")
