"""A verdict as SARIF 2.1.0, which code-scanning pages of forges and editors read. `docs/ci.md` explains it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gradleak.core.files import write_text
from gradleak.report.findings import Finding, findings_of
from gradleak.verdict.model import Level, Verdict
from gradleak.verdict.sentences import LEVEL_WORDS
from gradleak.version import __version__

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

# Kind and level in SARIF's words. Only what was read is a failure; what is unfinished or unclear is an open question,
# and no level passes: the last one says what was tried in vain.
_KINDS: dict[Level, tuple[str, str]] = {
    "critical": ("fail", "error"),
    "high": ("fail", "error"),
    "moderate": ("fail", "warning"),
    "unfinished": ("open", "none"),
    "unclear": ("open", "none"),
    "not shown": ("informational", "none"),
}
# By which code-scanning pages sort: 9 and above is critical there, 7 high, 4 medium.
_SEVERITY: dict[Level, str] = {"critical": "9.5", "high": "8.0", "moderate": "5.0"}


def write_sarif(verdict: Verdict, place: Path, source: str) -> Path:
    """Write a verdict as SARIF; `source` is the file that the findings are shown at."""
    return write_text(place, json.dumps(sarif(verdict, source), indent=2) + "\n")


def sarif(verdict: Verdict, source: str) -> dict[str, Any]:
    """The log, with one run, one rule for each level and one result for each scenario."""
    rules = [_rule(level) for level in _KINDS]
    numbers = {level: number for number, level in enumerate(_KINDS)}
    driver = {"name": "gradleak", "version": __version__, "semanticVersion": __version__, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, numbers[finding.level], source) for finding in findings_of(verdict)],
        "properties": {"caveat": verdict.caveat, "attemptsWithoutResult": len(verdict.missing)},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def rule_id(level: Level) -> str:
    """
    >>> rule_id("not shown")
    'leak/not-shown'
    """
    return f"leak/{level.replace(' ', '-')}"


def _rule(level: Level) -> dict[str, Any]:
    kind, severity = _KINDS[level]
    scored = {"security-severity": _SEVERITY[level]} if level in _SEVERITY else {}
    return {
        "id": rule_id(level),
        "name": f"Leak{level.title().replace(' ', '')}",
        "shortDescription": {"text": f"Leak from updates: {level}"},
        "fullDescription": {"text": LEVEL_WORDS[level]},
        "help": {"text": f"{LEVEL_WORDS[level]} The levels and their rule are written down in docs/verdict.md."},
        "defaultConfiguration": {"level": severity if kind == "fail" else "note"},
        "properties": {"tags": ["security", "privacy", "federated-learning"], **scored},
    }


def _result(finding: Finding, number: int, source: str) -> dict[str, Any]:
    kind, severity = _KINDS[finding.level]
    return {
        "ruleId": rule_id(finding.level),
        "ruleIndex": number,
        "kind": kind,
        "level": severity,
        "message": {"text": f"{finding.name}: {finding.headline}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(Path(source).as_posix())},
                    "region": {"startLine": 1},
                },
                "logicalLocations": [{"name": finding.name, "kind": "scenario"}],
            }
        ],
        "partialFingerprints": {"scenario/v1": finding.identity},
        "properties": {"attacks": list(finding.attacks), **finding.numbers},
    }
