"""Imports between the packages of gradleak go one way: from what shows results down to what everything rests on."""

from __future__ import annotations

from collections import defaultdict
from graphlib import TopologicalSorter

from source import ROOT, Import, imports, imports_of, modules

# Every package, and the packages that it may import from, in the order of the flow. An edge that nobody uses goes.
ALLOWED = {
    "core": "",
    "models": "core",
    "data": "core models",
    "updates": "core models",
    "defenses": "core models updates",
    "clients": "core models data updates defenses",
    "matching": "core models updates",
    "priors": "core models",
    "attacks": "core models data updates defenses matching priors",
    "scoring": "core models data updates matching attacks",
    "training": "core models data updates defenses clients",
    "audits": "core models data updates defenses clients attacks scoring training",
    "experiments": "core models data updates defenses attacks scoring training audits",
    "verdict": "core models updates defenses attacks scoring audits experiments",
    "report": "core models data updates defenses attacks scoring audits experiments verdict",
    "bench": "core models data updates clients matching attacks scoring audits experiments verdict",
    "cli": "core models data updates defenses attacks scoring training audits experiments verdict report bench",
}
# Against the flow, in annotations alone: a model checks that what an attacker knows fits it.
ONLY_FOR_TYPES = {("models", "updates")}
# Against the flow, and why.
EXCEPTIONS = {
    ("models", "matching"): "a family names the rule that reads its own layers; where it was found by structure, the "
    "rules were tried on a small model, and are imported when that is asked for"
}

EDGES = {(package, other) for package, others in ALLOWED.items() for other in others.split()}


def edges(found: dict[str, frozenset[Import] | set[Import]]) -> dict[tuple[str, str], dict[str, bool]]:
    """The packages that import from one another, each pair with the modules that do, and whether only for types."""
    used: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)
    for module, own in found.items():
        for each in own:
            package, other = module.split(".")[1], [*each.name.split("."), ""][1]
            if each.of("gradleak") and other in ALLOWED and other != package:
                place = used[package, other]
                place[module] = place.get(module, True) and each.only_for_types
    return dict(used)


def of_the_source() -> dict[tuple[str, str], dict[str, bool]]:
    inside = [module for module in modules() if module.split(".")[1:2] and module.split(".")[1] in ALLOWED]
    return edges({module: imports_of(module) for module in inside})


def test_every_package_is_listed():
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert folders == set(ALLOWED)


def test_the_allowed_edges_make_no_circle():
    order = list(TopologicalSorter({package: others.split() for package, others in ALLOWED.items()}).static_order())
    assert set(order) == set(ALLOWED)
    assert not EDGES & ONLY_FOR_TYPES
    assert not EDGES & set(EXCEPTIONS)


def test_nothing_is_imported_against_the_flow():
    wrong = {
        edge: sorted(module for module, for_types in places.items() if not (for_types and edge in ONLY_FOR_TYPES))
        for edge, places in of_the_source().items()
        if edge not in EDGES and edge not in EXCEPTIONS
    }
    assert {edge: places for edge, places in wrong.items() if places} == {}


def test_every_allowed_edge_is_used():
    assert EDGES | ONLY_FOR_TYPES | set(EXCEPTIONS) <= set(of_the_source())


def test_no_package_imports_the_public_names():
    """The root package imports from all others; what it hands out is for users."""
    known = modules()
    inside = {module: imports_of(module) for module in known if module.count(".")}
    roots = {
        module: [each.name for each in own if each.name.rpartition(".")[0] == "gradleak" and each.name not in known]
        for module, own in inside.items()
    }
    assert {module: names for module, names in roots.items() if names} == {}


def test_the_check_notices():
    for line, package, edge, for_types in (
        ("from gradleak.scoring.score import score", "matching", ("matching", "scoring"), False),
        ("def f():\n    import gradleak.audits.run", "attacks", ("attacks", "audits"), False),
        ("if TYPE_CHECKING:\n    from gradleak.audits.spec import AuditSpec", "core", ("core", "audits"), True),
        ("from gradleak import report", "verdict", ("verdict", "report"), False),
        ("X = 'gradleak.cli.app:main'", "data", ("data", "cli"), False),
        ("from ..clients import text", "updates", ("updates", "clients"), False),
    ):
        module = f"gradleak.{package}.sly"
        found = edges({module: imports(line, f"gradleak.{package}")})
        assert found == {edge: {module: for_types}}
        assert edge not in EDGES | set(EXCEPTIONS)
