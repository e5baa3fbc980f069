"""Whether a declaration says the truth: a small model of its kind is built and the declared parts are compared."""
from __future__ import annotations
from typing import Any
from gradleak.models.families import Family

def check_declaration(family: Family, config: Any) -> None: ...
