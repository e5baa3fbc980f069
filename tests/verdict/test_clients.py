"""What a verdict says of clients: their rule, what was undone of it, and which changes were or were not measured."""

from __future__ import annotations

import re
import shlex

import pytest
from command_line import run
from invented import audit
from test_judge import LOW, shown
from tiny import TEXTS, tiny_model

from gradleak import Client, attack, load_model
from gradleak.audits.files import unscored
from gradleak.audits.results import Results
from gradleak.models.load import save_model
from gradleak.updates.client_rule import ClientRule
from gradleak.verdict.gather import gather
from gradleak.verdict.judge import judge

LORA = "r=8,alpha=16,targets=query+value"
PLAIN = ClientRule.parse("adamw:steps=2,batch=2,lr=1e-3")


def trained(leaks, rule=PLAIN, **more) -> Results:
    settings = {"client": rule, "batch_size": 4, "lora": LORA, "adapters": LORA}
    return audit(leaks, scenario={**settings, **more})


def test_it_says_which_rule_the_client_followed():
    (line,) = judge([trained([90] * 10)]).scenarios[0].client
    for part in ("4 sentences", "2 steps of AdamW", "2 sentences a step", "weight decay 0.01", "its adapters", LORA):
        assert part in line
    assert "FedSGD" in judge([audit([90] * 10)]).scenarios[0].client[0]


def test_results_without_the_new_fields_load_as_they_are():
    kept = audit([90] * 10).model_dump(mode="json")
    for name in ("adapters", "lora"):
        del kept["scenario"][name]
    for trial in kept["trials"]:
        del trial["reconstruction"]["undone"]
    loaded = Results.model_validate(kept)
    assert judge([loaded]).scenarios[0].client == judge([audit([90] * 10)]).scenarios[0].client


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ("fedsgd", []),
        ("fedavg:lr=1e-3", []),
        ("adamw:lr=1e-3", ["undone: weight decay of 0.01", "not undone: 2 steps of adamw"]),
        (
            "adamw:lr=1e-3,batch=2",
            ["undone: weight decay", "undone: the division of the first step", "not undone: of"],
        ),
        ("fedavg:lr=1e-3,momentum=0.9", ["undone: momentum of 0.9"]),
    ],
)
def test_what_was_undone_and_what_not_comes_from_the_attack(rule, left):
    model = tiny_model("bert", "classification", layers=1)
    update = Client(model, client=rule).update(TEXTS[:2], labels=[0, 1])
    (answer,) = attack(update, model, "bag")
    assert len(answer.undone) == len(left)
    assert all(line.startswith(part) for line, part in zip(answer.undone, left, strict=True))
    results = audit([90] * 10)
    unchecked = judge([results.model_copy(update={"trials": [unscored(answer, 0)], "summary": {}, "control": {}})])
    assert len(unchecked.unchecked[0].client) == 1 + len(left)
    assert all(line in shown(unchecked).replace("\n", " ") for line in unchecked.unchecked[0].client[1:])


def test_changes_that_were_not_measured_have_commands_and_no_promise():
    lines = judge([trained([90] * 10)]).scenarios[0].untried
    told = "\n".join(lines)
    for what in (
        "8 local steps",
        "batches of 16",
        "weight decay of 0.1",
        "rank 2",
        "bf16 on the wire",
        "of 4 clients",
    ):
        assert what in told
    assert all(line.startswith("Not measured: ") and ". Try: gradleak audit " in line for line in lines)
    assert not re.search(r"\bsafe|\bhelps|\bprotect", told, re.IGNORECASE)
    assert judge([trained(LOW)]).scenarios[0].untried == []  # nothing leaks
    assert judge([trained([90] * 10, data="given in Python")]).scenarios[0].untried == []
    printed = {each.strip() for each in shown(judge([trained([90] * 10)])).splitlines()}
    assert set(lines) <= printed  # not broken, to be copied


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"client": PLAIN.model_copy(update={"steps": 20})}, "20 local steps"),
        ({"client": PLAIN.model_copy(update={"wd": 0.5})}, "weight decay of 0.5"),
        ({"client": PLAIN.model_copy(update={"wire": "bf16"})}, "bf16 on the wire"),
        ({"client": PLAIN.model_copy(update={"batch": 8}), "batch_size": 16}, "batches of 16"),
        ({"clients": 8}, "secure aggregation of 8 clients"),
        ({"lora": "r=1,alpha=2,targets=query+value", "model_fingerprint": "0" * 32, "parameters": 9}, "rank 1"),
    ],
)
def test_measured_changes_of_a_client_are_compared(changes, named):
    first = judge([trained([90] * 10), trained(LOW, **changes)]).scenarios[0]
    assert first.change.startswith("Measured to bring the best attack down to guessing: ")
    assert named in first.change
    assert len(first.untried) == 5
    lowered = judge([trained([90] * 10), trained([40] * 10, **changes)]).scenarios[0].change
    assert "lowers it most" in lowered
    assert named in lowered


def test_other_adapters_are_no_change_of_rank():
    for lora in ("r=1,alpha=2,targets=query", "r=1,alpha=2,targets=query+value,b=0.1", None):
        other = trained(LOW, lora=lora, model_fingerprint="0" * 32, parameters=9)
        assert judge([trained([90] * 10), other]).scenarios[0].change is None


def test_a_command_that_is_told_reads_the_same_columns_and_classes():
    taken_as = {"num_labels": "3", "text_column": "ticket text", "label_column": "2", "max_tokens": "20"}
    first, second = trained([90] * 10, taken_as=taken_as), trained(LOW, clients=4)
    told = judge([first]).scenarios[0].untried
    words = "--num-labels 3", "--text-column 'ticket text'", "--label-column 2", "--max-tokens 20"
    assert all(word in line for line in told for word in words)
    assert "4 clients" in judge([first, second]).scenarios[0].change  # older results, which do not say it, compare


def test_fewer_steps_are_not_the_change_that_was_not_measured():
    fewer = trained([95] * 10, PLAIN.model_copy(update={"steps": 1}))
    assert "8 local steps" in "\n".join(judge([trained([90] * 10), fewer]).scenarios[1].untried)


@pytest.mark.slow
def test_a_command_that_is_told_runs_and_is_compared(tmp_path):
    model = tiny_model("bert", "classification", layers=4, width=128)
    place = save_model(model.module, model.tokenizer, tmp_path / "my model")
    folder = tmp_path / "audits"
    short = ("--trials", 10, "--max-tokens", 20, "--attack", "exact", "--out", folder / "one")
    assert run("audit", "--model", place, *short).code == 0
    (first,) = gather(folder).verdict.scenarios
    command = next(line for line in first.untried if "bf16" in line).partition("Try: ")[2]
    words = shlex.split(command)
    ended = run(*words[1:], "--out", folder / "two")
    assert ended.code == 0, ended.err
    first = gather(folder).verdict.scenarios[0]
    assert "bf16 on the wire" in (first.change or "")
    assert not any("bf16" in line for line in first.untried)


@pytest.mark.parametrize("text", ["r=4,targets=query", "r=2,alpha=3,targets=query+value,rslora=true"])
def test_adapters_of_a_folder_are_told_as_fresh_ones_are(text, tmp_path):
    pytest.importorskip("peft")
    base = tiny_model("bert", "classification")
    save_model(base.module, base.tokenizer, tmp_path / "base")
    fresh = load_model(tmp_path / "base", lora=text)
    loaded = load_model(save_model(fresh.module, fresh.tokenizer, tmp_path / "adapters"))
    assert fresh.adapters == fresh.fresh_lora == loaded.adapters
    assert (loaded.fresh_lora, base.adapters, base.fresh_lora) == (None, None, None)
