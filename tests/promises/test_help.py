"""Help that is whole, whichever version of typer is installed, and names that were misspelt."""

from __future__ import annotations

import pytest
import typer
from command_line import run

from gradleak.cli import app


def commands(command, before=()):
    yield before, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*before, name))


COMMANDS = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=lambda each: "-".join(each) if each == () else None)
def test_everything_is_described(words, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    ended = run(*words, "--help")
    assert ended.code == 0
    shown = "".join(ended.out.split())  # lines end anywhere, also behind a hyphen
    assert "\\[" not in shown
    for parameter in command.params:
        assert parameter.help, (words, parameter.name)
        assert "".join(parameter.help.split()) in shown, (words, parameter.name)


@pytest.mark.parametrize(
    ("words", "near"),
    [(["audi"], "audit"), (["bench", "enginee"], "engine"), (["audit", "--modle", "x"], "--model")],
)
def test_a_misspelt_name_is_answered_once(words, near):
    ended = run(*words)
    assert ended.code == 2
    assert ended.err.lower().count("did you mean") <= 1
    assert near in ended.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(shell, monkeypatch):
    assert "--install-completion" in run("--help").out
    monkeypatch.setenv("_GRADLEAK_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "gradleak fro")
    monkeypatch.setenv("COMP_WORDS", "gradleak fro")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert "frontier" in run().out
