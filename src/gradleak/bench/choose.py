"""The tables of docs/choose-a-defence.md: `python -m gradleak.bench.choose minilm --data sst2@FOLDER --out FILE`.

A row is a client: a defence, a larger batch, more local steps, or several clients of whom only the mean is seen. Of
each it is asked what `auto` reads, what a server confirms that has the sentences in a list with others, and, under
differential privacy, what any attacker can do at most. What defences cost comes from the folder of
`gradleak frontier` (`--frontier`), and so does what was read there. The file keeps every row: the same command goes
on where it was ended.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.attacks.contains.run import Server
from gradleak.audits.modality import method_of
from gradleak.audits.run import AuditCase, ClientSide, audit_together, load_target
from gradleak.audits.spec import AuditSpec
from gradleak.bench.choose_show import table
from gradleak.bench.pages import fill_page
from gradleak.bench.provenance import ABOUT, about, named
from gradleak.core.budget import Budget
from gradleak.core.environment import describe
from gradleak.core.files import write_text
from gradleak.core.output import say
from gradleak.core.progress import SILENT
from gradleak.data.corpora import read_rows
from gradleak.data.texts import Row as Text
from gradleak.experiments.frontier.points import cost
from gradleak.experiments.utility import Metric, UtilityResults
from gradleak.models.text import TextModel, text_target
from gradleak.scoring.interval import Interval
from gradleak.scoring.membership import KnownCandidate, TrialCandidates, summarise
from gradleak.verdict.ceilings import ceilings_of

# Other sentences in the list of a trial, and public ones: half to learn from, half to count false alarms on.
OTHERS, PUBLIC = 20, 240
# More others are drawn, as some may be among the public ones.
SPARE = 10
# The rate of false alarms at which a sentence counts as confirmed.
LEVEL = 0.01
# What is asked of a row.
PARTS = ("reading", "candidates", "ceilings")


@dataclass(frozen=True)
class Row:
    """One client of a table, by the settings in which it differs from the first."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """What all rows have in common, and the rows."""

    common: Mapping[str, Any]
    rows: Sequence[Row]
    metric: str = "accuracy"  # that costs are told in

    def spec(self, row: Row, data: str, trials: int, seed: int) -> AuditSpec:
        return AuditSpec.model_validate({**self.common, **row.settings, "data": data, "trials": trials, "seed": seed})


def _defended(*defenses: str) -> list[Row]:
    return [Row(text, {"defenses": (text,)}) for text in defenses]


def _together(*clients: int) -> list[Row]:
    return [Row(f"mean of {n} clients", {"aggregate": n}) for n in clients]


def _private(rows: int, batch: int) -> list[Row]:
    """DP-SGD for three ε, as a training of 1,000 steps of such batches has it."""
    return _defended(*(f"dpsgd:epsilon={e},clip=1.0,rows={rows},batch={batch},steps=1000" for e in (8, 3, 1)))


TABLES = {
    "minilm": Table(
        {"model": "minilm", "attack": "auto", "options": {"steps": 50}, "known": ("batch_size",)},
        [
            Row("none", {}),
            *_defended("wire:format=float16", "wire:format=bfloat16"),
            *_defended("wire:format=blockwise8", "wire:format=normfloat4", "percentile", "svt", "adaptiveclip"),
            *_defended("localdp:epsilon=8", "tree:noise=1.0,rounds=1000,round=500"),
            *_private(67349, 16),
            *(Row(f"batch of {size}", {"batch_size": size}) for size in (4, 16)),
            *(
                Row(f"batch of 4, {4 * epochs} local steps", {"batch_size": 4, "client": f"fedavg:epochs={epochs}"})
                for epochs in (1, 5)
            ),
            *_together(2, 8, 32),
        ],
    ),
    "smollm2-lora": Table(
        {
            "model": "smollm2", "lora": "r=16,targets=query+value,b=0.02", "attack": "auto",
            "options": {"steps": 50}, "known": ("batch_size",),
        },
        [
            Row("none", {}),
            *_defended("wire:format=blockwise8", "wire:format=normfloat4", "percentile", "svt", "adaptiveclip"),
            *_defended("localdp:epsilon=8", "tree:noise=1.0,rounds=1000,round=500"),
            *_private(30000, 4),
            Row("batch of 4", {"batch_size": 4}),
            Row("batch of 4, 4 local steps of AdamW", {"batch_size": 4, "client": "adamw:lr=2e-4"}),
            *_together(2, 8, 32),
        ],
        metric="perplexity",
    ),
}  # fmt: skip


class Bench:
    """Measures rows of a table on one model and one list of texts."""

    def __init__(self, model: TextModel, texts: Sequence[Text], budget: float) -> None:
        self.model, self.texts, self.budget = model, texts, budget
        self._server: Server | None = None
        self._public: list[str] = []

    def reading(self, spec: AuditSpec) -> dict[str, Any]:
        """What the attack reads in so many seconds a trial."""
        started, method = time.monotonic(), method_of(spec, "text")
        (results,) = audit_together(
            [AuditCase(spec, self.texts)], self.model, method, one_by_one=True,
            budget=Budget(self.budget * spec.trials),
        )  # fmt: skip
        sentences = [sentence for trial in results.trials for sentence in trial.reconstruction.sentences]
        return {
            "rouge_l": _rounded(results.summary["rougeL"]),
            "control": _rounded(results.control["rougeL"]),
            "by_trial": [round(trial.scores["rougeL"], 1) for trial in results.trials],
            "trials": len(results.trials),
            "cut": sum(trial.status != "completed" for trial in results.trials),
            "budget": self.budget,
            "certified": sum(sentence.certified for sentence in sentences),
            "seconds": round(time.monotonic() - started, 1),
        }

    def candidates(self, spec: AuditSpec) -> dict[str, Any]:
        """What a server confirms that has the sentences of every trial in a list with others.

        Unlike in an audit all trials and rows have the same public text, so that what it shows is learnt once.
        """
        started = time.monotonic()
        side = ClientSide(AuditCase(spec.with_(candidates=OTHERS + SPARE), self.texts), self.model)
        assert side.lists is not None
        if self._server is None:
            _, public = side.lists.draw([], spec.seed)
            assert public is not None
            self._public = public[:PUBLIC]
            self._server = Server(self.model, public=self._public, references=PUBLIC // 2, seed=spec.seed)
        trials = []
        for i in range(spec.trials):
            members = list(dict.fromkeys(side.batches[i].texts))
            drawn, _ = side.lists.draw(members, side.seeds[i])
            others = [text for text in drawn if text not in self._public][:OTHERS]
            found = self._server.ask(side.update(i, SILENT), members + others)
            known = [
                KnownCandidate(**each.model_dump(), member=number < len(members))
                for number, each in enumerate(found.candidates)
            ]
            trials.append(
                TrialCandidates(
                    seed=side.seeds[i], status=found.status, references=found.references, candidates=known
                )
            )
        whole = summarise(trials, OTHERS)
        confirmed = whole.at(LEVEL)
        return {
            "auc": None if whole.auc is None else _rounded(whole.auc, 3),
            "confirmed": None if confirmed is None else _rounded(confirmed),
            "trials": whole.trials,
            "members": whole.members,
            "others": whole.others,
            "seconds": round(time.monotonic() - started, 1),
        }

    def ceilings(self, spec: AuditSpec) -> list[dict[str, Any]]:
        """What any attacker who has all texts can do at most."""
        guess = 1 / len(self.texts)
        found = ceilings_of(spec.defenses, spec.rule, spec.batch_size, spec.aggregate or 1, [guess])
        return [each.model_dump() for each in found]


def command(spec: AuditSpec) -> str:
    """The audit of a row as a user gives it, with the data by its name alone.

    >>> command(AuditSpec(model="minilm", defenses=("sign",), options={"steps": 50}))
    'gradleak audit --model minilm --defense sign -o steps=50'
    """
    flags = {"options": "-o", "defenses": "--defense"}
    words = ["gradleak", "audit"]
    for name in (name for name in AuditSpec.model_fields if name in spec.model_fields_set):
        value = getattr(spec, name)
        flag = flags.get(name) or "--" + name.replace("_", "-")
        if name == "data":
            value = named(value)
        values = [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else value
        for each in values if name in ("options", "defenses") else [",".join(value) if name == "known" else value]:
            words += [flag, str(each)]
    return shlex.join(words)


def from_frontier(folder: Path) -> dict[str, dict[str, Any]]:
    """What a frontier has of every setting: what was read, and what it costs."""
    kept = json.loads((folder / "frontier.json").read_text(encoding="utf-8"))
    found = {}
    for point in kept["points"]:
        (score,) = point["attacks"].values()
        own: dict[str, Any] = {"metric": kept["metric"], "frontier": kept["environment"]["git_commit"]}
        for name, value in (("cost", point["cost"]), ("learned", point["utility"])):
            own[name] = None if value is None else _rounded(Interval(**value))
        if score is not None:
            own["reading"] = {
                "rouge_l": _rounded(Interval(**score["leak"])), "control": _rounded(Interval(**score["control"])),
                "trials": score["trials"], "cut": 0,
            }  # fmt: skip
        found[point["label"]] = own
    return found


def from_utility(folder: Path) -> dict[str, dict[str, Any]]:
    """What a folder of `gradleak utility` has of every setting: what it costs."""
    kept = UtilityResults.model_validate_json((folder / "utility.json").read_text(encoding="utf-8"))
    plain = kept.settings[0]
    metric: Metric = "perplexity" if "perplexity" in kept.untrained else "accuracy"
    found = {}
    for own in kept.settings:
        price, learned = cost(own, plain, metric), own.metrics.get(metric)
        found[own.setting] = {
            "cost": None if price is None else _rounded(price),
            "learned": None if learned is None else _rounded(learned),
            "metric": metric,
        }
    return found


def _rounded(interval: Interval, digits: int = 1) -> dict[str, float]:
    return {name: round(value, digits) for name, value in interval.model_dump().items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gradleak.bench.choose")
    parser.add_argument("table", choices=sorted(TABLES))
    parser.add_argument("--data", required=True, help="sst2@FOLDER or enron@FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--seed", type=int, default=7000)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds that the attack has for a trial")
    parser.add_argument(
        "--frontier", type=Path, help="folder of `gradleak frontier`; its settings are not attacked again"
    )
    parser.add_argument(
        "--utility", type=Path, help="folder of `gradleak utility`, for costs; those of its settings count"
    )
    parser.add_argument("--rows", default="", help="only rows with one of these words, with commas")
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure, with commas")
    parser.add_argument("--page", type=Path, help="the page that gets the table")
    given = parser.parse_args(arguments)
    kept = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"rows": {}}
    measured = {} if given.frontier is None else from_frontier(given.frontier)
    for name, own in ({} if given.utility is None else from_utility(given.utility)).items():
        measured[name] = {**measured.get(name, {}), **own}
    for name, own in measured.items():
        row = kept["rows"].setdefault(name, {})
        read = max(row.get("reading"), own.get("reading"), key=lambda each: 0 if each is None else each["trials"])
        row.update(own | ({} if read is None else {"reading": read}))
    kept[ABOUT] = about(str(TABLES[given.table].common["model"]), given.data, before=kept)
    measure(given, kept)
    write_text(given.out, json.dumps(kept, indent=1) + "\n")
    if given.page is not None:
        fill_page(given.page, f"gradleak.bench.choose {given.table}", table(kept))


def measure(given: argparse.Namespace, kept: dict[str, Any]) -> None:
    """Fill the rows that are not there yet."""
    plan = TABLES[given.table]
    wanted = [word for word in given.rows.split(",") if word]
    rows = [row for row in plan.rows if not wanted or any(word in row.name for word in wanted)]
    spec = plan.spec(rows[0], given.data, given.trials, given.seed)
    model = text_target(load_target(spec), "the bench")
    bench = Bench(model, read_rows(given.data), given.budget)
    kept["order"], kept["metric"] = [row.name for row in plan.rows], plan.metric
    for row in rows:
        spec = plan.spec(row, given.data, given.trials, given.seed)
        own = kept["rows"].setdefault(row.name, {})
        for name in given.parts.split(","):
            if name not in own:
                own[name] = getattr(bench, name)(spec)
                own["command"], own["commit"] = command(spec), describe(model.device).git_commit
                write_text(given.out, json.dumps(kept, indent=1) + "\n")
                say(f"{row.name}: {name} {json.dumps(own[name])}")


if __name__ == "__main__":
    main()
