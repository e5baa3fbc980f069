"""The settings of an audit as command-line options, each declared once; a command names those it takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

Model = Annotated[str | None, typer.Option(help="Built-in name, Hugging Face folder or hub id; default: minilm.")]
OtherModel = Annotated[str | None, typer.Option("--model", help="Another model than the file names.")]
Training = Annotated[
    str | None,
    typer.Option("--model", help="Folder of a training, as `gradleak finetune --checkpoints` writes it."),
]
Data = Annotated[
    str | None, typer.Option(help="A .txt, .csv, .tsv or .jsonl file, an .npz of images for lenet; default: builtin.")
]
TextData = Annotated[str | None, typer.Option("--data", help="A .txt, .csv, .tsv or .jsonl file; default: builtin.")]
TextColumn = Annotated[str | None, typer.Option(help="Column of the text: name or 1-based number.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the label: name or 1-based number.")]
AttackName = Annotated[str | None, typer.Option(help="One of `gradleak attacks`; default: auto, and lti for images.")]
Options = Annotated[
    list[str] | None, typer.Option("-o", "--option", help="An attack option, key=value; repeat for more.")
]
BatchSize = Annotated[int | None, typer.Option(help="Sentences, or images, in a client's batch; default: 1.")]
Trials = Annotated[int | None, typer.Option(help="Independent batches to attack; default: 4.")]
Seed = Annotated[int | None, typer.Option(help="Fixes what is drawn and all other chance; default: 0.")]
Known = Annotated[
    str | None,
    typer.Option(
        help="What the attacker is told: batch_size, labels, lengths, with commas; '' for nothing; "
        "default: batch_size."
    ),
]
ClientSpec = Annotated[
    str | None,
    typer.Option(
        "--client", help="Such as fedavg:epochs=1,batch=1,lr=5e-5; add mode=train for dropout; default: fedsgd."
    ),
]
Defenses = Annotated[
    list[str] | None,
    typer.Option(
        "--defense", help="What the client does to its update, such as noise:sigma=0.01; repeat for a chain."
    ),
]
Observe = Annotated[
    str | None,
    typer.Option(
        help="The part of the model the attacker sees: transformer, layer:6, layer:6.query, head, ...; default: all."
    ),
]
Task = Annotated[str | None, typer.Option(help="classification, or causal-lm (lm for short); default: by the model.")]
NumLabels = Annotated[int | None, typer.Option(help="Classes of a newly drawn head.")]
MaxTokens = Annotated[int | None, typer.Option(help="Pass over texts of more tokens than this.")]
Window = Annotated[int | None, typer.Option(help="Cut the texts into pieces of exactly so many tokens.")]
Entities = Annotated[
    bool | None, typer.Option("--entities", help="Score named entities too (NERR); needs gradleak[entities].")
]
LpipsFlag = Annotated[
    bool, typer.Option("--lpips", help="Compare images by LPIPS too; fetches 64 MB of weights once.")
]
AuxiliaryData = Annotated[
    str | None, typer.Option("--data", help="For image models: an .npz whose x_train the attacker holds.")
]
Redact = Annotated[bool, typer.Option("--redact", help="Mask all texts in what is written and shown.")]
Device = Annotated[str | None, typer.Option(help="Any torch device, such as cuda or mps; default: cpu.")]
BudgetText = Annotated[
    str | None, typer.Option("--budget", help="Time limit: 60s, 5m, 1h; what is done by then is kept.")
]
Memory = Annotated[
    str | None, typer.Option(help="What the engine may use: 800MB, 4GB; default: half of what is free.")
]

DATA = {"model": Model, "data": Data, "text_column": TextColumn, "label_column": LabelColumn}
ATTACK = {"attack": AttackName, "options": Options, "memory": Memory, "budget": BudgetText}
CLIENT = {"batch_size": BatchSize, "known": Known, "client": ClientSpec, "defenses": Defenses}
LOADING = {"task": Task, "num_labels": NumLabels, "device": Device}
DRAWING = {"seed": Seed, "max_tokens": MaxTokens, "window": Window}
AUDIT = DATA | ATTACK | CLIENT | LOADING | DRAWING | {"trials": Trials}

Command = Callable[..., None]


def takes(options: dict[str, Any], **more: Any) -> Callable[[Command], Command]:
    """Add options to a command, which gets those that were said as `given`, the way `load_config` takes them.

    `more` are options by name as well; a name in both keeps the later declaration.
    """
    added = {**options, **more}

    def decorate(command: Command) -> Command:
        own = dict(inspect.signature(command).parameters)
        del own["given"]
        hints = {name: hint for name, hint in get_type_hints(command, include_extras=True).items() if name in own}

        @functools.wraps(command)
        def run(**values: Any) -> None:
            said = {name: value for name in added if (value := values.pop(name)) is not None}
            command(**values, given=_attack_options(said))

        # typer looks at the signature and at the annotations, so both must tell of the added options.
        unset = inspect.Parameter.KEYWORD_ONLY
        extra = [inspect.Parameter(name, unset, default=None, annotation=kind) for name, kind in added.items()]
        kept = [value.replace(kind=unset, annotation=hints[name]) for name, value in own.items()]
        run.__signature__ = inspect.Signature([*kept, *extra])  # type: ignore[attr-defined]
        run.__annotations__ = hints | added
        return run

    return decorate


def _attack_options(given: dict[str, Any]) -> dict[str, Any]:
    """The same with `-o` pairs as a table, and the memory limit among them, for it is an attack's option."""
    from gradleak.audits.spec import parse_options

    options: dict[str, Any] = parse_options(given.pop("options", []))
    if (memory := given.pop("memory", None)) is not None:
        options.setdefault("memory", memory)
    return given | ({"options": options} if options else {})
