"""Lists of what there is: they show what other packages add, and none of those can break them."""

from importlib.metadata import EntryPoint

import pytest

from gradleak.attacks import ATTACKS, IMAGE_ATTACKS
from gradleak.cli import listing
from gradleak.defenses import DEFENSES
from gradleak.models.families import FAMILIES
from gradleak.scoring.metrics import METRICS

# What a package of another name could declare: an entry of its own, and one that cannot be imported.
ADDED = {
    ATTACKS: "gradleak.attacks.bag:Bag",
    IMAGE_ATTACKS: "gradleak.attacks.images.ig:Ig",
    DEFENSES: "gradleak.defenses.sign:SignCompression",
    FAMILIES: "gradleak.models.families.bert:BERT",
    METRICS: "gradleak.scoring.metrics.rouge:ROUGE1",
}


@pytest.mark.parametrize(
    ("registry", "show", "ours"),
    [
        (ATTACKS, listing.print_attacks, "lamp-cos"),
        (IMAGE_ATTACKS, listing.print_attacks, "gi-gip"),
        (DEFENSES, listing.print_defenses, "quantize"),
        (FAMILIES, listing.print_models, "roberta"),
        (METRICS, listing.print_metrics, "rougeL"),
    ],
)
def test_lists_show_what_packages_add_and_a_line_for_the_broken(registry, show, ours, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    points = {
        name: [EntryPoint(name, value, registry.group)]
        for name, value in {"added": ADDED[registry], "broken": "nowhere.at.all:Thing", "other": "math:pi"}.items()
    }
    monkeypatch.setitem(registry.__dict__, "_entry_points", points)
    monkeypatch.setattr(registry, "_loaded", {})
    show()
    shown = capsys.readouterr().out
    assert ours in shown
    assert "added" in shown
    (broken,) = [line for line in shown.splitlines() if "cannot be loaded" in line]
    assert "nowhere.at.all:Thing" in broken
    assert f"other: 'other' is no {registry.kind}" in shown


def test_what_must_be_given_is_marked(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    listing.print_defenses()
    assert "required" in capsys.readouterr().out


def test_metrics_are_shown_with_range_and_direction(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    listing.print_metrics()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    by_name = {row[0]: row[1:] for row in rows if row}
    assert next(iter(by_name)) == "rouge1"
    assert by_name["lpips"][0] == "LPIPS"
    assert by_name["lpips"][3:] == ["0 to 1", "lower", "with --metrics"]
    assert by_name["ssim"][3:] == ["-1 to 1", "higher", "always"]
