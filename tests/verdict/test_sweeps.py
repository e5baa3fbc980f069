"""The verdict on a sweep's folder: what a limit ended or what failed never counts as "did not leak"."""

import pytest
from invented import audit

from gradleak import GradleakError
from gradleak.audits.spec import AuditSpec
from gradleak.core.files import write_text
from gradleak.experiments.runner.cell import EndedCell, Hashes, Seeds
from gradleak.experiments.runner.jobs import AuditJob
from gradleak.experiments.runner.store import PLAN, Plan
from gradleak.verdict.gather import gather

LOW = [5, 6, 4, 5, 6, 5, 4, 6, 5, 5]


def cell(number, status, results=None, **settings):
    spec = AuditSpec(model="minilm", data="builtin", **settings)
    return EndedCell(
        id=f"cell-{number:016x}", job=AuditJob(spec=spec),
        hashes=Hashes(model="m", data="d", code="c"), seeds=Seeds(data=0, attack=0), status=status,
        error=None if status == "completed" else "out of memory", seconds=1.0, results=results,
    )  # fmt: skip


def sweep(folder, *cells, unrun=()):
    (folder / "cells").mkdir()
    for one in cells:
        write_text(folder / "cells" / f"{one.id}.json", one.model_dump_json())
    plan = Plan(kind="sweep", settings={}, cells=[*(one.id for one in cells), *unrun])
    write_text(folder / PLAN, plan.model_dump_json())
    return gather(folder)


def test_completed_cells_are_judged(tmp_path):
    found = sweep(tmp_path, cell(1, "completed", audit(LOW)), cell(2, "completed", audit([90] * 10, attack="dlg")))
    assert [one.level for one in found.verdict.scenarios] == ["high"]
    assert not found.verdict.missing


def test_a_cell_that_a_limit_ended_is_cut_short_whatever_its_trials_say(tmp_path):
    ended = cell(2, "budget-exhausted", audit(LOW, attack="dlg"))
    found = sweep(tmp_path, cell(1, "completed", audit(LOW)), ended)
    (one,) = found.verdict.scenarios
    assert one.level == "unfinished"
    assert {attack.attack: attack.unfinished for attack in one.attacks} == {"auto": 0, "dlg": 10}


def test_a_cell_without_a_result_leaves_its_scenario_open(tmp_path):
    other = audit(LOW, scenario={"batch_size": 4})
    found = sweep(
        tmp_path,
        cell(1, "completed", audit(LOW)),
        cell(2, "completed", other, batch_size=4),
        cell(3, "failed", attack="dlg"),
        unrun=["cell-never"],
    )
    levels = {one.scenario: one.level for one in found.verdict.scenarios}
    assert levels == {"batch 1": "unfinished", "batch 4": "not shown"}
    assert "1 planned attempt without a result" in found.verdict.scenarios[0].headline
    assert [name.partition(" ")[2] for name in found.verdict.missing] == ["(failed: out of memory)", "(not run)"]


def test_a_sweep_without_any_result_is_said(tmp_path):
    with pytest.raises(GradleakError, match="no result yet"):
        sweep(tmp_path, cell(1, "failed"))
