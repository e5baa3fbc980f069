"""Whatever data holds, and wherever the output goes: it is shown as it is, and no run ends because of it."""

import ast
import contextlib
import io
import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text
from source import modules

from gradleak import audit
from gradleak.core.console import SafeConsole
from gradleak.core.output import say

BAG = ["--attack", "bag", "--trials", 2]
# Orders to a terminal, a text that runs backwards, a line that overwrites itself, markup.
HOSTILE = [
    "\x1b]0;owned\x07 \x1b[2Jcleared",
    "\u202egnp.exe\u2069",
    "all\rgone\x08",
    "[/red] [bold]loud[/] [link=x]",
    "C1 \x9b31m",
]


def commands_in(text):
    """Characters that a terminal obeys instead of showing them."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in "\n\t"} | (
        set(text) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u200b\ufeff")
    )


def started(words, **how):
    environment = {**os.environ, "COLUMNS": "160", **how.pop("env", {})}
    return subprocess.run([sys.executable, "-m", "gradleak", *map(str, words)], env=environment, check=False, **how)


@pytest.fixture(scope="module")
def audited(small_model, tmp_path_factory):
    """A finished audit whose texts no narrow terminal can show, with a note of brackets."""

    texts = ["Søren paid 5 € – “twice”…", "我的女儿病了", "plain words"]
    results = audit(str(small_model), data=texts, attack="bag", trials=3)
    results.trials[0].reconstruction.notes.append("[/b] a note with [brackets] and \x1b[31m")
    place = tmp_path_factory.mktemp("audited")
    results.save(place)
    return place


def test_names_with_markup_do_not_end_a_run(call, small_model, tmp_path):
    data = tmp_path / "a[/b].csv"
    data.parent.mkdir()
    data.write_text("text,label\none two three,0\nfour five six,1\n", encoding="utf-8")
    out = tmp_path / "out[bold]"
    said = call("audit", "--model", small_model, "--data", data, *BAG, "--out", out)
    assert said.code == 0, said.err
    assert "a[/b].csv" in said.out
    assert str(out / "report.html") in said.out
    assert (out / "report.html").is_file()


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_commands_the_terminal(call, small_model, tmp_path, text):
    data = tmp_path / "hostile.jsonl"
    data.write_text("".join(json.dumps({"text": f"{text} {n}", "label": n}) + "\n" for n in range(2)))
    said = call("audit", "--model", small_model, "--data", data, *BAG, "--out", tmp_path / "out")
    assert said.code == 0, said.err
    assert commands_in(said.out + said.err) == set()
    refused = call("audit", "--model", small_model, "--data", data, "--known", text, "--out", tmp_path / "out")
    assert refused.code == 2
    assert commands_in(refused.out + refused.err) == set()


def test_a_terminal_of_few_characters(audited):
    """One that is there; all others are in `test_every_way_to_print_shows_and_never_obeys`."""
    done = started(["report", audited], env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}, capture_output=True)
    shown = done.stdout.decode("ascii")
    assert done.returncode == 0, done.stderr
    assert "\\u6211" in shown
    assert "+---" in shown
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["assets", "report"])
def test_a_full_disk_is_said_in_one_line(command, audited):
    words = [command, audited] if command == "report" else [command, "list"]
    with Path("/dev/full").open("wb") as full:
        done = started(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode in (1, 2)
    assert done.stderr.splitlines() == ["gradleak: cannot write the output: No space left on device"]
    assert (audited / "report.html").is_file() or command == "assets"


def test_a_closed_pipe_is_no_error(audited):
    """As `gradleak report FOLDER | head -1`; what is written is written none the less."""
    (audited / "report.html").unlink(missing_ok=True)
    reader, writer = os.pipe()
    os.close(reader)
    done = started(["report", audited], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""
    assert (audited / "report.html").is_file()


TEXTS = st.text(max_size=30) | st.sampled_from(HOSTILE)


@given(text=TEXTS, name=TEXTS, encoding=st.sampled_from(["utf-8", "latin-1", "ascii", "cp437"]))
def test_every_way_to_print_shows_and_never_obeys(text, name, encoding):
    """Lines, cells, titles and ready-made texts, to any kind of terminal."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, newline="")
    console = SafeConsole(file=stream, width=400, color_system=None)
    table = Table(title=name)
    table.add_column(name)
    table.add_row(text)
    table.add_row(Text(text))
    for part in (text, Text(text, style="bold"), table):
        console.print(part)
    with contextlib.redirect_stdout(stream):
        say(text, name)
    stream.flush()
    printed = raw.getvalue().decode(encoding)
    assert commands_in(printed) == set()
    if text.isprintable() and text.isascii() and text.strip():
        assert text in printed


@given(text=TEXTS)
def test_one_line_stays_one(text):
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream):
        say(text, err=True)
    assert stream.getvalue().count("\n") == 1


def test_a_full_disk_under_the_error_output_disturbs_nothing():
    with Path("/dev/full").open("w") as full, contextlib.redirect_stderr(full):
        say("nobody hears this", err=True)
        SafeConsole(err=True).print("nor this")


# Nobody else opens a way out: these are the calls that would.
WAYS_OUT = {"print", "Console", "echo", "secho", "rprint"}
LAYER = {"gradleak.core.output", "gradleak.core.console"}


def ways_out(source):
    """The calls of a source text that print past the layer."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            last = name.rpartition(".")[2]
            if name in WAYS_OUT or last in WAYS_OUT - {"print"} or name in ("sys.stdout.write", "sys.stderr.write"):
                yield f"line {node.lineno}: {name}"


def test_nobody_prints_past_the_output_layer():
    found = {name: [*ways_out(path.read_text("utf-8"))] for name, path in modules().items() if name not in LAYER}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line", ["print(1)", "typer.echo(1)", "rich.console.Console()", "Console(stderr=True)", "sys.stderr.write('x')"]
)
def test_the_check_notices(line):
    assert list(ways_out(line))
    assert not list(ways_out("console.print(1)\nprogress.message(line)\nsay(line)"))
