"""Command-line options out of the fields of `AuditSpec`, and those that say how an experiment is run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from gradleak.core.model_names import refuse_unknown

if TYPE_CHECKING:
    from gradleak.experiments.crews.base import Crew
    from gradleak.experiments.experiment import RunOptions

Command = Callable[..., None]

BudgetText = Annotated[
    str | None, typer.Option("--budget", help="Time limit: 60s, 5m, 1h; what is done by then is kept.")
]
Redact = Annotated[bool, typer.Option("--redact", help="Mask all texts in what is written and shown.")]

AUDIT = ("model", "data", "attack", "client", "loading", "drawing", "scoring", "running")
EXECUTORS = ("local", "ray", "inline")


@dataclass(frozen=True)
class RunFlags:
    """How the cells of an experiment are run, as the command line gives it."""

    workers: int | None
    executor: str
    address: str | None
    gpus: float
    threads: int | None
    limits: str | None
    retry_failed: bool
    dry_run: bool

    def options(self, device: str, **changes: Any) -> RunOptions:
        """The same for the runner; `changes` are what an experiment's own file decides."""
        from gradleak.core.parameters import split_parameters, validated
        from gradleak.experiments.experiment import RunOptions
        from gradleak.experiments.runner.cell import Limits

        _, values = split_parameters(f"limits:{self.limits or ''}")
        limits = {"limits": validated(Limits, values, "--limits")} if values else {}
        chosen: dict[str, Any] = {**changes, **limits, **({"threads": self.threads} if self.threads else {})}
        executor: Any = "inline" if self.executor == "inline" else "local"
        options = RunOptions(self.workers, executor, retry_failed=self.retry_failed, **chosen)
        return replace(options, crew=self._crew(options, device))

    def _crew(self, options: RunOptions, device: str) -> Crew | None:
        """Actors of a Ray cluster; None for this machine."""
        from gradleak.core.errors import GradleakError
        from gradleak.core.registry import suggest

        if self.executor not in EXECUTORS:
            raise GradleakError(f"unknown executor {self.executor!r}; {suggest(self.executor, EXECUTORS)}")
        if self.executor != "ray" or self.dry_run:
            return None
        from gradleak.experiments.crews.ray import RayCrew

        return RayCrew(
            options.threads, options.limits, device=device, workers=self.workers, address=self.address, gpus=self.gpus
        )


RUN: dict[str, tuple[Any, Any]] = {
    "workers": (
        Annotated[int | None, typer.Option(min=1, help="Processes, or Ray actors; default: as many as have cores.")],
        None,
    ),
    "executor": (
        Annotated[str, typer.Option(help="local; ray: on a Ray cluster; inline: in this process, to debug.")],
        "local",
    ),
    "address": (Annotated[str | None, typer.Option(help="Of the Ray cluster; default: one on this machine.")], None),
    "gpus": (Annotated[float, typer.Option(min=0.0, help="Share of a GPU that a Ray actor takes.")], 0.0),
    "threads": (
        Annotated[int | None, typer.Option(min=1, help="Threads of a worker, on which results depend; default: 1.")],
        None,
    ),
    "limits": (
        Annotated[str | None, typer.Option(help="Of one cell, such as time=5m,memory=4GB,steps=1000.")],
        None,
    ),
    "retry_failed": (Annotated[bool, typer.Option("--retry-failed", help="Run failed cells once more.")], False),
    "dry_run": (Annotated[bool, typer.Option("--dry-run", help="Show the plan and its cost; run nothing.")], False),
}


def takes(
    *groups: str,
    names: Sequence[str] = (),
    without: Sequence[str] = (),
    helps: Mapping[str, str] | None = None,
    run: bool = False,
) -> Callable[[Command], Command]:
    """Add settings of an audit to a command, which gets those that were set as `given`.

    Settings are chosen by group or by name; `helps` are other words for some of them. With `run`, the command also
    gets `flags`, how the cells of its experiment are run.
    """

    def decorate(command: Command) -> Command:
        own = dict(inspect.signature(command).parameters)
        for added in ("given", "flags") if run else ("given",):
            del own[added]
        hints = {name: hint for name, hint in get_type_hints(command, include_extras=True).items() if name in own}
        fields = {
            name: kind
            for name, kind in options_for(groups, names, helps or {}).items()
            if name not in {*without, *own}
        }
        running = RUN if run else {}

        @functools.wraps(command)
        def call(**values: Any) -> None:
            given = {name: value for name in fields if (value := values.pop(name)) is not None}
            if "model" in given:  # before libraries are imported that take seconds
                refuse_unknown(given["model"])
            flags = {"flags": RunFlags(**{name: values.pop(name) for name in running})} if run else {}
            command(**values, given=given, **flags)

        # typer looks at the signature and at the annotations, so both must tell of the added options.
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [value.replace(kind=keyword, annotation=hints[name]) for name, value in own.items()]
        parameters += [inspect.Parameter(n, keyword, default=None, annotation=kind) for n, kind in fields.items()]
        parameters += [inspect.Parameter(n, keyword, default=d, annotation=kind) for n, (kind, d) in running.items()]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


def options_for(groups: Sequence[str], names: Sequence[str], helps: Mapping[str, str]) -> dict[str, Any]:
    """The fields of the spec that were chosen, each as typer takes an option."""
    from gradleak.audits.spec import AuditSpec, about

    chosen = {}
    for name, field in AuditSpec.model_fields.items():
        if about(field, "group") in groups or name in names:
            flag = about(field, "flag")
            flags = flag.split(",") if flag else [f"--{name.replace('_', '-')}"]
            help_text = helps.get(name) or _help(field.description or "", field.default)
            chosen[name] = Annotated[_kind(field.annotation, bool(flag)), typer.Option(*flags, help=help_text)]
    return chosen


def _help(description: str, default: Any) -> str:
    """
    >>> _help("independent batches to attack", 4), _help("folder for the results", None)
    ('Independent batches to attack; default: 4.', 'Folder for the results.')
    """
    shown = ",".join(default) if isinstance(default, tuple) else default
    unset = shown in (None, "", {}, False) or "default" in description
    return description[:1].upper() + description[1:] + ("." if unset else f"; default: {shown}.")


def _kind(annotation: Any, repeated: bool) -> Any:
    """The type of a value on the command line; lists stand in one text, with commas, or are options that repeat."""
    inner = [part for part in get_args(annotation) if part is not type(None)]
    if repeated:
        return list[str] | None
    for kind in (bool, int, float):
        if annotation is kind or kind in inner:
            return kind | None
    return str | None
