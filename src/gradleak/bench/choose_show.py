"""The tables of `gradleak.bench.choose`, made from its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOT_RUN = "–"


def table(kept: Mapping[str, Any]) -> str:
    """A line for every client of which something was measured, and the names of the others."""
    rows = {name: kept["rows"].get(name, {}) for name in kept["order"]}
    cost = "perplexity grows by, %" if kept["metric"] == "perplexity" else "points of accuracy lost"
    lines = [
        "| client | `auto` reads (ROUGE-L) | guessing | trials | confirmed at 1 % false alarms | AUC | "
        f"ceiling: this update, whole training | {cost} |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_line(name, own) for name, own in rows.items() if _measured(own)]
    missing = [_named(name) for name, own in rows.items() if not _measured(own)]
    return "\n".join([*lines, *(["", f"Not run yet: {'; '.join(missing)}."] if missing else [])])


def _measured(own: Mapping[str, Any]) -> bool:
    return any(own.get(part) for part in ("reading", "candidates", "ceilings", "cost"))


def _line(name: str, own: Mapping[str, Any]) -> str:
    read, asked = own.get("reading"), own.get("candidates")
    cells = [
        _named(name),
        *(_read(read) if read else (NOT_RUN, NOT_RUN, NOT_RUN)),
        *((_share(asked), _auc(asked)) if asked else (NOT_RUN, NOT_RUN)),
        _ceilings(own.get("ceilings") or []),
        NOT_RUN if own.get("cost") is None else _spread(own["cost"], 1),
    ]
    return f"| {' | '.join(cells)} |"


def _named(name: str) -> str:
    """A defence as it is written, another client in words."""
    return name if " " in name or name == "none" else f"`{name}`"


def _read(read: Mapping[str, Any]) -> tuple[str, str, str]:
    after = f" at {read['budget']:g} s" if "budget" in read else ""
    cut = f", {read['cut']} cut{after}" if read["cut"] else ""
    return _spread(read["rouge_l"]), f"{read['control']['mean']:.0f}", f"{read['trials']}{cut}"


def _share(asked: Mapping[str, Any]) -> str:
    return NOT_RUN if asked["confirmed"] is None else f"{_spread(asked['confirmed'])} % of {asked['members']}"


def _auc(asked: Mapping[str, Any]) -> str:
    return NOT_RUN if asked["auc"] is None else _spread(asked["auc"], 2)


def _ceilings(ceilings: list[Mapping[str, Any]]) -> str:
    return ", ".join(f"{100 * each['success']:.2g} %" for each in ceilings)


def _spread(interval: Mapping[str, float], digits: int = 0) -> str:
    """
    >>> _spread({"mean": 12.34, "low": 5.0, "high": 20.0})
    '12 [5, 20]'
    """
    mean, low, high = (f"{interval[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]".replace("-", "−")
