"""Commands that read and describe themselves alike under every version of typer that may be installed.

Federated frameworks hold typer back, and its older versions lose the descriptions of arguments, escape brackets in
plain help, and suggest a misspelt name twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from gradleak.core.parameters import BITS
from gradleak.core.registry import suggest

Function = TypeVar("Function", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command whose arguments are described, whose paths have names and whose numbers have an end."""

    def __init__(self, *given: Any, **values: Any) -> None:
        super().__init__(*given, **values)
        signature = inspect.signature(self.callback, eval_str=True) if self.callback else inspect.Signature()
        self.declared = {name: get_args(each.annotation) for name, each in signature.parameters.items()}
        for parameter in self.params:
            self._describe(parameter)

    def _describe(self, parameter: Any) -> None:
        about = (each for each in self.declared.get(parameter.name, ()) if isinstance(each, ArgumentInfo))
        parameter.help = getattr(parameter, "help", None) or next((each.help for each in about), None)

    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        written, _, _ = self.make_parser(ctx).parse_args(list(args))
        for parameter in self.params:
            given = written.get(parameter.name)
            if self._is_path(parameter.name) and "" in (given if isinstance(given, list | tuple) else (given,)):
                self._refuse(ctx, parameter, "it is empty, and must name a file or folder")
        left = super().parse_args(ctx, args)
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            if isinstance(value, int) and value.bit_length() > BITS:
                self._refuse(ctx, parameter, "the number is too large")
        return left

    def _is_path(self, name: str) -> bool:
        kind = (*self.declared.get(name, ()), None)[0]
        return any(part is Path for part in (kind, *get_args(kind)))

    def _refuse(self, ctx: Any, parameter: Any, why: str) -> NoReturn:
        raise typer.BadParameter(why, ctx=ctx, param=parameter)


class Group(TyperGroup):
    """A group of commands that answers a misspelt name once."""

    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {args[0]!r}; {suggest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


class App(typer.Typer):
    """An application, or a group of one, of such commands."""

    def __init__(self, help: str, bare: bool = False, **settings: Any) -> None:
        """A `bare` group does something without a command too."""
        plain: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
        super().__init__(help=help, cls=Group, no_args_is_help=not bare, **plain, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        return super().command(name, cls=Command, **settings)


def _plain(text: str) -> str:
    return text.replace("\\[", "[")
