"""A verdict as JUnit's XML, which CI servers show as tests: one for each scenario. `docs/ci.md` explains it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from gradleak.core.files import write_text
from gradleak.core.text import counted
from gradleak.report.findings import Finding, findings_of
from gradleak.verdict.model import Level, Verdict
from gradleak.verdict.rule import LEAKS, reaches

# What XML 1.0 cannot hold, even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(verdict: Verdict, place: Path, limit: Level | None = None) -> Path:
    """Write a verdict as JUnit's XML; scenarios at `limit` or worse fail, by default those that leak."""
    return write_text(place, junit(verdict, limit) + "\n")


def junit(verdict: Verdict, limit: Level | None = None) -> str:
    """One suite. What is unfinished or unclear counts as skipped unless it is to fail: it was not decided."""
    worst = limit or LEAKS[-1]
    cases = [_case(finding, worst) for finding in findings_of(verdict)]
    if verdict.missing:
        cases.append(_element("testcase", classname="gradleak.verdict", name="attempts without a result"))
        message = f"{counted(len(verdict.missing), 'attempt')} without a result, which count for nothing"
        cases[-1].append(_element("failure" if reaches("unfinished", worst) else "skipped", message=message))
    counts = {kind: sum(case.find(tag) is not None for case in cases) for kind, tag in _COUNTED.items()}
    numbers = {"tests": str(len(cases)), **{kind: str(count) for kind, count in counts.items()}, "errors": "0"}
    suite = _element("testsuite", name="gradleak", timestamp=verdict.created.partition("+")[0], **numbers)
    suite.extend(cases)
    suite.append(_text("system-out", verdict.caveat))
    whole = _element("testsuites", name="gradleak", **numbers)
    whole.append(suite)
    ElementTree.indent(whole)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(whole, encoding="unicode")


_COUNTED = {"failures": "failure", "skipped": "skipped"}


def _case(finding: Finding, limit: Level) -> ElementTree.Element:
    case = _element("testcase", classname="gradleak.verdict", name=finding.name)
    if reaches(finding.level, limit):
        case.append(_text("failure", "\n".join(_lines(finding)), message=finding.headline, type=finding.level))
    elif finding.level in ("unfinished", "unclear"):
        case.append(_element("skipped", message=finding.headline))
    case.append(_text("system-out", "\n".join([f"level: {finding.level}", *_lines(finding)])))
    return case


def _lines(finding: Finding) -> list[str]:
    numbers = [f"{name}: {value:g}" for name, value in finding.numbers.items()]
    return [finding.headline, f"attacks: {', '.join(finding.attacks)}", *numbers]


def _text(tag: str, text: str, **attributes: str) -> ElementTree.Element:
    element = _element(tag, **attributes)
    element.text = _FORBIDDEN.sub("�", text)
    return element


def _element(tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.Element(tag, {name: _FORBIDDEN.sub("�", value) for name, value in attributes.items()})
