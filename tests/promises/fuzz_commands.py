"""Commands with random and hostile arguments and files: each ends in time, with an exit code and no traceback.

`python tests/promises/fuzz_commands.py 2000` tries so many and prints counts; `test_command_line_fuzz.py` a few.
Commands are taken from the application, so new ones join by themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import typer
from command_line import Ended, run
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from test_fuzz import AUDIT, NASTY, SWEEP, VALUES, mangled
from tiny import tiny_model, tiny_tokenizer

from gradleak.cli import app

# What is still running then hangs; a budget of a second is among the arguments of whatever takes one.
HANG_SECONDS = 60
# These have no budget and take their time: they are cut off, which is no hang.
UNBOUND, CUT_SECONDS = ("demo", "bench"), 1
# More than any of this takes, so that a size without end is an error and not the end of the machine.
MEMORY = 6 << 30
CODES = (0, 1, 2, 3, 130)

# What makes a command run, and quickly; used unless something odd is drawn.
RIGHT = {
    "--budget": "1s", "--executor": "inline", "--trials": "1", "--rounds": "1", "--seeds": "1", "--clients": "1",
    "--test-rows": "5", "--seconds": "0.1", "--epochs": "1", "--kills": "1", "--cells": "80", "--model": "model",
    "--data": "data.csv", "--out": "new.csv", "--before": "model/model.safetensors", "--after": "moved.safetensors",
    "--lr": "0.01", "--steps": "1", "--aux": "data.txt",
}  # fmt: skip
ARGUMENTS = {
    "update": ("update", "update", "cut"), "names": ("nowhere",),
    "truth": ("update.truth.json",), "first": ("results", "cells"), "second": ("results", "cells"),
    "folder": ("results", "cells", "found"), "folders": ("results", "cells"),
}  # fmt: skip
WRITES = ("--out", "--json", "--svg", "--sarif", "--junit")
PARAMETERS = [
    *("fedavg:epochs=2,lr=1e-4", "fedavg:lr=1,lr=2", "fedavg:lr=nan", "fedsgd:mode=train", "layer:1", "layer:9"),
    *("noise:sigma=0.1", "noise:sigma=inf", "dpsgd:noise=1,clip=1", "dpsgd:epsilon=1000", "sign", "none", "auto"),
    *(
        "bag",
        "dlg",
        "film",
        "exact",
        "regex:((((",
        "os:system",
        "time=1s",
        "memory=1",
        "lenet:seed=3",
        "lti:tokens=1",
    ),
    *("steps=1", "steps=-1", "prior=none", "a=b=c", "=", "lm", "classification", "labels,lengths", "fp32", "bf16"),
    *("cuda", "mps", "warp", "builtin", "cola@.", "1s", "0s", "1e400h", "-5m", "best_rougeL", "nerr", "text", "high"),
]
NUMBERS = [
    *("0", "-1", "1", "2", "3", "0.5", "1e-320", "1e400", "nan", "-inf", "٣", "²", "0x10", "1_0", "9" * 5000),
    *map(str, (2**31, 2**63, -(2**63), 10**30)),
]
TEXTS = [
    *("", " ", ".", "..", "../x", "../../x", "-", "--", "--help", "%s", "{0}", "~", "$HOME", "*", "nowhere"),
    *("\x00", "a\x00b", "\x1b[31m", "\r\n", "[bold]", "[/b]", "a[/b].csv", "😀", "\u202e", "\udcff"),
    *("a" * 300, "a/" * 2100),
]
# Not in what names a place to write to.
PLACES = ["/dev/zero", "/dev/full", "/dev/null", "/dev/stdin", "/proc/self/status"]


@dataclass
class Zoo:
    """A folder with one user's files, good and bad; copied for every case, so that none can spoil another."""

    base: Path
    documents: dict[str, Any] = field(default_factory=dict)

    def build(self) -> Zoo:
        """Make the good files once, with the commands themselves."""
        good, model = self.base / "good", "model"
        good.mkdir()
        quick = ["--attack", "dlg", "-o", "steps=1", "-o", "prior=none", "--trials", "1"]
        with contextlib.chdir(good):
            tiny_model("bert", "classification", layers=1, width=8).module.save_pretrained(model)
            tiny_tokenizer("bert").save_pretrained(model)
            for words in (
                ["audit", "--model", model, *quick, "--out", "results"],
                ["capture", "--model", model, "--out", "update"],
                ["attack", "update", "--model", model, *quick[:-2], "--out", "found"],
            ):
                ended = run(*words)
                assert ended.code == 0, ended.err
            dlg = "{name: dlg, options: {steps: 1, prior: none}}"
            Path("sweep.yaml").write_text(f"models: [{model}]\nattacks: [{dlg}]\ntrials: 1\n")
            ended = run("sweep", "sweep.yaml", "--executor", "inline", "--out", "cells")
            assert ended.code == 0, ended.err
            self._bad()
        for name in ("results/results.json", "update/manifest.json", "found/results.json", "update.truth.json",
                     "cells/plan.json"):  # fmt: skip
            self.documents[name] = json.loads((good / name).read_text())
        return self

    def _bad(self) -> None:
        texts = {
            "audit.yaml": AUDIT, "odd-sweep.yaml": SWEEP, "data.csv": "text,label\n" + "Rosa moved,1\nno,0\n" * 9,
            "empty": "",
            "data.txt": "Rosa moved to ward six.\n", "a[/b].csv": "text\nRosa\n", "twice.yaml": "data: a\ndata: b\n",
            "long.yaml": f"trials: {'9' * 5000}\n", "deep.yaml": "a: " + "[" * 5000, "deep.json": "[" * 100_000,
            "twice.json": '{"a": 1, "a": 2}', "list.yaml": "- 1\n", "alias.yaml": "a: &a [1]\nb: *a\n",
            "short.safetensors": "\x08", "nul.csv": "te\x00xt\n\x00\n", "drawn.yaml": "", "drawn.csv": "",
        }  # fmt: skip
        for name, text in texts.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text)
        Path("cut.safetensors").write_bytes(Path("update/update.safetensors").read_bytes()[:-9])
        moved = {name: weight + 1 for name, weight in load_file("model/model.safetensors").items()}
        save_file(moved, "moved.safetensors")
        Path("utf16.csv").write_text("text\nRosa\n", encoding="utf-16")
        Path("read-only").mkdir(mode=0o500)
        for name in ("folder", "cut", "drawn"):
            Path(name).mkdir()
        shutil.copy("update/manifest.json", "cut/manifest.json")
        shutil.copy("cut.safetensors", "cut/update.safetensors")

    def names(self) -> list[str]:
        links = ["fifo", "fifo.yaml", "fifo.json", "fifo.csv", "loop", "gone", "zero.json", "full.csv"]
        return sorted({*links, *(path.name for path in (self.base / "good").iterdir())})

    @contextlib.contextmanager
    def case(self) -> Iterator[Path]:
        """A fresh copy to work in, two folders deep, so that `..` stays inside."""
        with tempfile.TemporaryDirectory(dir=self.base) as folder:
            place = Path(folder) / "a" / "b"
            shutil.copytree(self.base / "good", place)
            for name in ("fifo", "fifo.yaml", "fifo.json", "fifo.csv"):
                os.mkfifo(place / name)
            for name, target in (("loop", "loop"), ("gone", "no/where"),
                                 ("zero.json", "/dev/zero"), ("full.csv", "/dev/full")):  # fmt: skip
                (place / name).symlink_to(target)
            with contextlib.chdir(place):
                yield place


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", {})
    for name, each in below.items():
        yield from leaves(each, (*words, name))
    if not below:
        yield words, command


COMMANDS = dict(leaves(typer.main.get_command(app)))


@st.composite
def changed(draw: Any, document: Any) -> Any:
    """A JSON document with something in it left out, replaced, or said twice."""
    whole = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        at = whole
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if not isinstance(at[key], dict | list) or draw(st.integers(0, 3)) == 0:
                if draw(st.booleans()):
                    del at[key]
                else:
                    at[key] = draw(VALUES | st.sampled_from([10**30, -1, float("nan"), "", "\x1b[31m", [], {}]))
                break
            at = at[key]
    return json.dumps(whole, default=str)


def odds(percent: int) -> st.SearchStrategy[bool]:
    return st.integers(0, 99).map(lambda number: number < percent)


@st.composite
def cases(draw: Any, zoo: Zoo) -> tuple[tuple[str, ...], list[str], dict[str, bytes]]:
    """A command, its arguments, mostly right with a few that are not, and files to overwrite first."""
    words = draw(st.sampled_from(sorted(COMMANDS)))
    there, written = st.sampled_from(zoo.names()), st.sampled_from([*PARAMETERS, *NUMBERS])
    odd = there | there | written | st.sampled_from(TEXTS) | st.text(max_size=8)
    read = odd | st.sampled_from(PLACES)
    right = {**RIGHT, "--model": "nowhere"} if words[0] == "bench" else RIGHT
    given: list[str] = []
    for parameter in COMMANDS[words].params:
        name = parameter.opts[-1]
        if parameter.param_type_name == "argument":
            usual = ARGUMENTS.get(name, ("audit.yaml", "sweep.yaml", "drawn.yaml", "results", "cells"))
            reads = words[0] not in ("bench", "assets")
            if draw(odds(95)):
                given.append(draw(st.sampled_from(usual) if reads and draw(odds(70)) else read if reads else odd))
        elif name not in ("--help", "--install-completion") and (
            draw(odds(4)) or name in right or parameter.required
        ):
            value = draw(odd if name in WRITES else read) if name not in right or draw(odds(10)) else right[name]
            spelt = [f"{name}={value}"] if draw(st.booleans()) else [name, value]
            given += [name] if parameter.is_flag else spelt
    files = {"drawn.yaml": draw(mangled(AUDIT.encode()) | mangled(SWEEP.encode()) | st.sampled_from(NASTY))}
    for name in zoo.documents:
        if draw(odds(20)):
            files[name] = draw(changed(zoo.documents[name])).encode()
    return words, given, files


class OutOfTime(BaseException):
    """Raised by the clock; no `except Exception` keeps it."""


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Bound time and memory."""

    def over(*_: object) -> None:
        raise OutOfTime

    previous, bounds = signal.signal(signal.SIGALRM, over), resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, bounds[1]))
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # again and again: where Python tidies up, it is not heard
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, bounds)
        signal.signal(signal.SIGALRM, previous)


def attempt(zoo: Zoo, words: tuple[str, ...], given: list[str], files: dict[str, bytes]) -> tuple[str, str | None]:
    """How a case ended, and what is wrong with that, if anything is."""
    unbound = words[0] in UNBOUND
    os.environ.update(HF_HUB_OFFLINE="1", GRADLEAK_DEBUG="0")
    with zoo.case() as place:
        for name, content in files.items():
            (place / name).write_bytes(content)
        try:
            with limited(CUT_SECONDS if unbound else HANG_SECONDS):
                ended = run(*words, *given)
        except OutOfTime:
            return "cut", None if unbound else f"still running after {HANG_SECONDS} s"
        finally:
            (place / "read-only").chmod(0o700)
    return ("cut", None) if unbound and "OutOfTime" in ended.err else (str(ended.code), wrong(ended))


def wrong(ended: Ended) -> str | None:
    if ended.code not in CODES:
        return f"exit code {ended.code}: {ended.err[-400:]}"
    if "Traceback" in ended.out + ended.err:
        return f"a traceback: {ended.err[-1500:]}"
    if ended.code == 2 and not ended.refused:
        return f"more than one line: {ended.err[-600:]}"
    return None


def main(count: int) -> None:
    """Try so many cases, go on after what is wrong, and print all of it at the end."""
    counts: Counter[tuple[str, str]] = Counter()
    found: dict[str, tuple[Any, ...]] = {}
    with tempfile.TemporaryDirectory() as base:
        zoo = Zoo(Path(base)).build()

        @settings(
            max_examples=count, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(cases(zoo))
        def check(case: Any) -> None:
            words, given, files = case
            code, problem = attempt(zoo, words, given, files)
            counts[" ".join(words), code] += 1
            if counts.total() % 100 == 0:
                print(f"{counts.total()} of {count} cases, {len(found)} kinds of problems", flush=True)
            if problem is not None and problem not in found:
                found[problem] = (words, given, {name: content[:3000] for name, content in files.items()})
                print(f"\n{problem}\n  {' '.join(words)} {given}", flush=True)

        check()
    codes = sorted({code for _, code in counts})
    print(f"\n{'command':<16}" + "".join(f"{code:>8}" for code in codes))
    for name in sorted({name for name, _ in counts}):
        print(f"{name:<16}" + "".join(f"{counts[name, code]:>8}" for code in codes))
    totals = [sum(count for (_, each), count in counts.items() if each == code) for code in codes]
    print(f"{'all':<16}" + "".join(f"{total:>8}" for total in totals))
    print(f"{sum(totals)} cases, {len(found)} kinds of problems", flush=True)
    os._exit(1 if found else 0)  # commands that were cut may have left threads behind


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
