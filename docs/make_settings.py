"""Writes docs/settings.md out of the fields of `AuditSpec`: python docs/make_settings.py

A test compares the page with the fields, so a setting that is added without running this is noticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import typer
from annotated_types import Ge
from pydantic.fields import FieldInfo

from gradleak.audits.modality import MODALITIES
from gradleak.audits.spec import AuditSpec, Group, about
from gradleak.cli import app
from gradleak.cli.options import RUN
from gradleak.experiments.runner.cell import Limits

PAGE = Path(__file__).with_name("settings.md")

HEADINGS: dict[Group, str] = {
    "model": "The model",
    "loading": "How it is loaded",
    "data": "The data",
    "drawing": "What is drawn from it",
    "client": "The client, and what the attacker sees",
    "attack": "The attack",
    "scoring": "Scores",
    "running": "The run",
}

INTRODUCTION = """\
# Every setting of an audit

<!-- Made by docs/make_settings.py from the fields of AuditSpec. Do not edit: change the fields and run it again. -->

Each setting is declared once, as a field of `gradleak.AuditSpec`. It is an option of the command line, a key of
`audit.yaml` and of the files of experiments, and a keyword in Python:

```sh
gradleak audit --model my-model --data my.csv --trials 2 --batch-size 2 --known batch_size,labels --budget 60s
```

```yaml title="two.yaml"
model: my-model
data: my.csv
trials: 2
batch_size: 2
known: [batch_size, labels]
budget: 60s
```

```python title="two.py"
from gradleak import AuditSpec, audit

spec = AuditSpec(model="my-model", data="my.csv", trials=2, batch_size=2, known=("batch_size", "labels"))
first = audit(spec, budget="60s")
other = audit("my-model", data="my.csv", trials=1, attack="bag")  # the same settings as keywords
print(first.summary["rougeL"].mean, other.found["bag recall"].mean)
```

```sh
gradleak audit two.yaml --trials 1 --budget 60s
python two.py
```

Options override the file. An unknown key or a value that cannot be is an error that names the nearest right one. In
Python `model` may also be a loaded model, `data` may be texts, `Row`s or `Pictures`, and `budget` a number of seconds
or a `Budget`. Setting what means nothing for the kind of data (a text column of images, for example) is an error.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for group, heading in HEADINGS.items():
        parts += [f"## {heading}\n", _table(group)]
    parts += ["## Which command takes what\n", COMMANDS, _commands(), "## How cells are run\n", CELLS, _running()]
    return "\n".join(parts)


def _table(group: Group) -> str:
    lines = ["| key | option | values | default | |", "|---|---|---|---|---|"]
    for name, field in AuditSpec.model_fields.items():
        if about(field, "group") == group:
            words = field.description or ""
            if name in MODALITIES.get("images").unused:
                words += "; text only"
            shown = [f"`{name}`", f"`{_option(name, field)}`", _values(field), _default(field), words]
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in shown)} |")
    return "\n".join(lines) + "\n"


def _option(name: str, field: FieldInfo) -> str:
    flag = about(field, "flag")
    return str(flag).split(",")[-1] if flag else f"--{name.replace('_', '-')}"


def _values(field: FieldInfo) -> str:
    kinds = {kind for kind in get_args(field.annotation) if kind is not type(None)} or {field.annotation}
    text = str(field.annotation)
    if "Literal" in text:
        return "a name"
    if "dict" in text:
        return "`key=value`, repeated; in YAML a table"
    if "tuple" in text:
        return "a list" if not about(field, "flag") else "a list; the option is repeated"
    if bool in kinds:
        return "yes or no"
    least = [limit.ge for limit in field.metadata if isinstance(limit, Ge)]
    if int in kinds:
        return f"a whole number, at least {least[0]}" if least else "a whole number"
    return "a text"


def _default(field: FieldInfo) -> str:
    value = field.default
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value) or "none"
    return "none" if value in (None, {}) else "no" if value is False else f"`{value}`"


COMMANDS = """\
`sweep` and `frontier` take the settings that all their cells share as keys of their file; what they vary is a list
there ([sweeps.md](sweeps.md), [frontier.md](frontier.md)). `map` and `checkpoints` read an `audit.yaml` like `audit`.
"""


def _commands() -> str:
    lines = ["| command | settings |", "|---|---|"]
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        taken = {parameter.name for parameter in command.params}
        missing = set(AuditSpec.model_fields) - taken
        chosen = [field for field in AuditSpec.model_fields if field in taken]
        if len(missing) <= 1 and chosen:
            lines.append(f"| `{name}` | all" + (f" but `{missing.pop()}` |" if missing else " |"))
        elif len(chosen) > 1 and name != "demo":
            lines.append(f"| `{name}` | {', '.join(f'`{each}`' for each in chosen)} |")
    return "\n".join(lines) + "\n"


CELLS = """\
`sweep`, `map`, `checkpoints`, `frontier`, `utility` and `reproduce` run many cells and take these options too. In
Python they are `gradleak.RunOptions` and `gradleak.Limits`:

```python
from gradleak import AuditSpec, Limits, RunOptions, leak_map

spec = AuditSpec(model="my-model", data="my.csv", trials=10)
leak_map(spec, "my-map", options=RunOptions(workers=2, limits=Limits(time="5m")))
```

A sweep has `threads` and `limits` in its file, so that everybody who runs the file gets the same cells; there
`--limits` and `--threads` override the file.
"""


def _running() -> str:
    lines = ["| option | |", "|---|---|"]
    for name, (kind, default) in RUN.items():
        (option,) = kind.__metadata__
        shown = f" Default: {default}." if default else ""
        lines.append(f"| `--{name.replace('_', '-')}` | {option.help}{shown} |")
    lines += [
        "",
        "Limits of one cell, as `--limits time=5m,memory=4GB` or `limits: {time: 5m}` in a sweep's file:",
        "",
    ]
    lines += ["| limit | |", "|---|---|"]
    lines += [f"| `{name}` | {field.description} |" for name, field in Limits.model_fields.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
