"""Recipes: every one is well-formed, cells run once, and the paper's numbers stand beside ours."""

import json
from dataclasses import replace

import pytest
from tiny import tiny_model, tiny_tokenizer

from gradleak import GradleakError, RunOptions, reproduce
from gradleak.attacks import attacks_for
from gradleak.attacks.inversion.networks import NetworkSettings
from gradleak.attacks.inversion.training import TrainSettings
from gradleak.bench.book.lines import lines_of
from gradleak.bench.provenance import missing
from gradleak.bench.recipes import compact
from gradleak.core.budget import Budget
from gradleak.data.corpora import DATASETS, IMAGE_DATASETS
from gradleak.data.published import published_order
from gradleak.defenses import parse_defenses
from gradleak.experiments.recipes.recipe import UtilityPart, load_recipe, recipe_names
from gradleak.experiments.recipes.table import markdown, write_markdown
from gradleak.models.load import modality_of_source
from gradleak.models.selection_text import parse_selection
from gradleak.training.rounds import RoundSettings
from gradleak.updates.client_rule import ClientRule

INLINE = RunOptions(executor="inline")
RECIPE = """
title: A small table
source: nowhere
trials: 2
known: [batch_size, labels, lengths]
cells:
  - {name: one, data: cola, attack: dlg, options: {steps: 2}, paper: {BERT-base: [59.3, 7.7, 46.2]}}
  - {name: two, data: cola, attack: lamp-cos, options: {steps: 2, prior: none, polish: 1}, batch_size: 2}
  - {name: query, data: cola, attack: dlg, options: {steps: 2}, observe: "layer:1.query"}
"""


@pytest.fixture
def place(tmp_path):
    lines = [f"x\t{i % 2}\t\tRosa moved to ward {i}." for i in range(12)]
    (tmp_path / "cola_train.tsv").write_text("\n".join(lines))
    (tmp_path / "small.yaml").write_text(RECIPE)
    tiny_model("bert", "classification").module.save_pretrained(tmp_path / "model")
    tiny_tokenizer("bert").save_pretrained(tmp_path / "model")
    return tmp_path


def run(place, recipe=None, **extra):
    recipe = recipe or load_recipe(str(place / "small.yaml"))
    settings = {"model": str(place / "model"), "options": INLINE, **extra}
    return reproduce(recipe, place / "out", data_dir=place, **settings)


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_that_come_with_the_package(name):
    recipe = load_recipe(name)
    assert len({cell.name for cell in recipe.cells}) == len(recipe.cells)
    modality = modality_of_source(recipe.audit.model)
    for cell in recipe.cells:
        attacks_for(modality).get(cell.attack).from_settings(cell.options)
        ClientRule.parse(cell.client)
        parse_defenses(cell.defenses)
        assert cell.data in (IMAGE_DATASETS if modality == "images" else DATASETS)
        if cell.inverter is not None:
            assert {cell.inverter.aux, cell.inverter.other or cell.inverter.aux} <= set(DATASETS)
            TrainSettings.model_validate(cell.inverter.training)
            NetworkSettings.model_validate(cell.inverter.network)
        for single in cell.on(3):
            parse_selection(single.observe)
    if recipe.utility is not None:
        assert recipe.utility.data in DATASETS
        RoundSettings.model_validate(recipe.utility.rounds)


@pytest.mark.parametrize(("number", "corpus"), [(5, "CoLA"), (6, "SST-2"), (7, "Rotten Tomatoes")])
def test_a_figure_has_every_part_once(number, corpus):
    """What the paper draws: all, all layers, each layer, and its six modules."""
    cells = [cell for line in load_recipe(f"partial-figure{number}").cells for cell in line.on(12)]
    assert len({cell.observe for cell in cells}) == len(cells) == 2 + 12 * 7
    assert all(cell.name.startswith(corpus) for cell in cells)
    table = {cell.name: cell.paper["BERT-base"] for cell in load_recipe("partial-table3").cells}
    assert {cell.name: cell.paper["BERT-base"] for cell in cells if cell.paper}.items() <= table.items()


def test_figures_of_one_corpus_share_their_cells():
    whole = {(cell.name, cell.observe) for cell in load_recipe("partial-figure5").cells}
    parts = {(cell.name, cell.observe) for n in (2, 3, 4) for cell in load_recipe(f"partial-figure{n}").cells}
    assert parts == whole


def test_a_line_for_every_layer_runs_a_cell_a_layer(place):
    """The tiny model has two; a star without a number to put there is an error."""
    lines = RECIPE.replace("name: query", "name: query *, every_layer_from: 1").replace("layer:1.q", "layer:*.q")
    (place / "small.yaml").write_text(lines)
    done = run(place, only="query", trials=1)
    assert [(line.name, results.scenario.observed.selection) for line, results in done.lines] == [
        ("query 1", "layer:1.query"),
        ("query 2", "layer:2.query"),
    ]
    (place / "small.yaml").write_text(lines.replace("layer:*.q", "layer:1.q"))
    with pytest.raises(GradleakError, match="every_layer_from needs a"):
        run(place)


def test_a_table_can_ask_what_the_model_learns(place):
    """Every defence of its lines is trained once, with none beside them."""
    plain = run(place)
    assert plain.utility is None
    defended = plain.recipe.cells[0].model_copy(update={"name": "three", "defenses": ("noise:sigma=0.1",)})
    rounds = {"rounds": 1, "clients": 1, "batch_size": 2, "seeds": 1, "test_rows": 4}
    asking = plain.recipe.model_copy(
        update={
            "cells": (*plain.recipe.cells, defended, defended.model_copy(update={"name": "four"})),
            "utility": UtilityPart(data="cola", rounds=rounds),
        }
    )
    learned = run(place, asking).utility
    assert [setting.setting for setting in learned.settings] == ["none", "noise:sigma=0.1"]
    assert run(place, asking, only="one").utility is None  # it belongs to the whole table


def test_lines_run_once_and_again_when_something_changes(place):
    done = run(place)
    assert [line.name for line, _ in done.lines] == ["one", "two", "query"]
    first = [results.created for _, results in done.lines]
    cells = set((place / "out" / "cells").iterdir())
    assert [results.created for _, results in run(place).lines] == first
    run(place, trials=1)
    assert len(set((place / "out" / "cells").iterdir()) - cells) == 3
    table = markdown(done)
    assert "59.3 / 7.7 / 46.2" in table
    assert "| two |" in table
    assert write_markdown(done).read_text() == table


def test_a_line_has_no_more_trials_than_its_paper(place):
    """Twelve sentences make six batches of two; fewer can be asked for, more cannot."""
    recipe = RECIPE.replace("trials: 2", "trials: 12\ndraw: lamp-test").replace(
        "batch_size: 2", "batch_size: 2, trials: 6"
    )
    (place / "small.yaml").write_text(recipe)
    alone, batches, _ = [results for _, results in run(place).lines]
    assert (len(alone.trials), len(batches.trials)) == (12, 6)
    took = [[pair.truth for trial in each.trials for pair in trial.pairs] for each in (alone, batches)]
    assert took[0] == took[1] == [f"Rosa moved to ward {i}." for i in published_order("lamp-test", range(12), 1)]
    assert [len(results.trials) for _, results in run(place, trials=2, only="two").lines] == [2]


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32])
def test_a_recipe_of_grab_has_every_sentence_once(size):
    """64 sentences, in as many batches as they make."""
    for name in ("grab-table5", "grab-table8", "grab-figure3"):
        recipe = load_recipe(name)
        own = [line for line in recipe.cells if line.batch_size == size]
        assert own
        assert {size * (line.trials or recipe.audit.trials) for line in own} == {64}


def test_a_spent_budget_leaves_the_line_for_the_next_run(place):
    done = run(place, budget=Budget(seconds=0))
    assert (done.lines, done.status) == ([], "budget-exhausted")
    done = run(place, only="two", attack_options={"candidates": "3", "no_such": "1"})
    assert [results.attack.options["candidates"] for _, results in done.lines] == [3]


def test_errors_say_what_there_is(place, tmp_path):
    with pytest.raises(GradleakError, match="unknown recipe 'lamp-table'; did you mean"):
        load_recipe("lamp-table")
    with pytest.raises(GradleakError, match="no line matches"):
        run(place, only="three")
    (place / "cola_train.tsv").unlink()
    with pytest.raises(GradleakError, match="holds no file of cola"):
        run(place)


def test_a_recipe_chooses_the_scores_it_shows(place):
    (place / "small.yaml").write_text(RECIPE + "metrics: [best_rougeL, sentence_recall]\n")
    done = run(place, only="two")
    ((line, results),) = done.lines
    lines = markdown(done).splitlines()
    assert lines[2].startswith("|  | Best ROUGE-L | Sentence recall | trials |")
    assert f"{results.summary['best_rougeL'].mean:.1f} [" in lines[4]
    old = results.model_copy(update={"summary": {"rougeL": results.summary["rougeL"]}})
    assert "| two |  |  | 2 |" in markdown(
        replace(done, lines=[(line, old)])
    )  # measured before there were such scores
    (place / "small.yaml").write_text(RECIPE + "metrics: [rougel]\n")
    with pytest.raises(GradleakError, match="unknown metric 'rougel'"):
        load_recipe(str(place / "small.yaml"))


INVERTED = """
title: A table of trained attacks
source: nowhere
trials: 2
window: 8
metrics: [token_accuracy]
cells:
  - name: none
    data: cola
    attack: lti
    inverter: {aux: cola, network: {length: 8, width: 16, layers: 1}, training: {steps: 3, batch: 4}}
"""


@pytest.mark.usefixtures("own_cache")
def test_a_cell_trains_the_inverter_its_attack_needs_once(tmp_path, monkeypatch):
    lines = [f"x\t{i % 2}\t\tRosa moved to ward {i}, and then to another one." for i in range(12)]
    (tmp_path / "cola_train.tsv").write_text("\n".join(lines))
    (tmp_path / "small.yaml").write_text(INVERTED)
    tiny_model("gpt2", "causal-lm", width=32).module.save_pretrained(tmp_path / "model")
    tiny_tokenizer("gpt2").save_pretrained(tmp_path / "model")
    recipe = load_recipe(str(tmp_path / "small.yaml"))
    given = {"data_dir": tmp_path, "model": str(tmp_path / "model"), "options": INLINE}
    assert reproduce(recipe, tmp_path / "out", **given, budget=Budget(seconds=0)).lines == []
    ((_, first),) = reproduce(recipe, tmp_path / "out", **given).lines
    assert "token_accuracy" in first.summary
    assert len(list((tmp_path / "cache" / "inverters").iterdir())) == 1
    monkeypatch.setattr("gradleak.experiments.runner.running.train_inverter", None)  # it must not be asked again
    ((_, more),) = reproduce(recipe, tmp_path / "out", **given, trials=3).lines
    assert len(more.trials) == 3


def test_finished_lines_are_kept_in_short_for_the_book(place):
    result = run(place, only="one")
    kept = compact("lamp-small", result, "one", trials=2)
    assert not missing(kept)
    assert kept["about"]["command"] == "gradleak reproduce lamp-small --data-dir DIR --only 'one' --trials 2"
    (cell,) = kept["cells"]
    ((_, results),) = result.lines
    assert cell["summary"]["rougeL"]["mean"] == pytest.approx(results.summary["rougeL"].mean, abs=1e-4)
    assert cell["control"]["rougeL"]["mean"] == pytest.approx(results.control["rougeL"].mean, abs=1e-4)
    assert (cell["trials"], cell["sentences"], cell["certified"]) == (2, 2, 0)
    assert "Rosa" not in json.dumps(kept)
    (line,) = lines_of("results/lamp-small.json", kept)
    assert (line.page, line.values["corpus"], line.values["paper, BERT-base"]) == (
        "lamp",
        "CoLA",
        "59.3 / 7.7 / 46.2",
    )
    assert line.values["ROUGE-L"].startswith(f"{results.summary['rougeL'].mean:.1f}")
