"""CamemBERT: RoBERTa over a French vocabulary."""

from __future__ import annotations

from dataclasses import replace

from gradleak.models.families.roberta import ROBERTA

CAMEMBERT = replace(ROBERTA, name="camembert")
