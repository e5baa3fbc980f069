"""Update folders out of a real Flower run: on the server around a strategy, or on a client as a mod.

    strategy = record_on_server(FedAvg(), "updates", model, tokenizer, client="fedavg:epochs=1,batch=4,lr=0.01")
    app = ClientApp(mods=[record_on_client("updates", model, client="fedavg:epochs=1,batch=4,lr=0.01")])

What is written is what was sent, after every defence. `client` is how clients train, which no message tells.
Each recorded round has a folder: `model` (the global model the clients were sent, written by the server), one
`client-<node>` per reply, or `aggregate` where secure aggregation lets the server see no single reply.

Messages and strategies are used as they come, so that this module can be read and checked without Flower.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.models.tasks import text_task
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.integrations.recording import MODEL, RECORDABLE, Recorder, save_with

log = logging.getLogger(__name__)

# How replies name the number of a client's sentences: FedAvg's default, and what older clients send.
COUNTS = ("num-examples", "num_examples")
UNEQUAL = "the clients had different numbers of sentences; each is taken to have an equal share"
TOKENS = "each client's loss is a mean over its own tokens, so sentences of different clients weigh differently"
GRID = "SecAgg+ rounded the weights to a grid before they were added up"


@dataclass(frozen=True)
class Reply:
    """What came from one client, or from several together: tensors, and the number of sentences it reports."""

    name: str
    tensors: Mapping[str, Tensor]
    sentences: int | None


def record_on_server(
    strategy: Any,
    out: str | Path,
    model: Any,
    tokenizer: Any,
    *,
    client: ClientRule | str,
    rounds: Collection[int] = (1,),
    secure_aggregation: bool = False,
    defenses: Sequence[str] = (),
    known: Collection[str] = RECORDABLE,
    notes: Sequence[str] = (),
) -> Any:
    """The strategy itself, which from now on writes the updates of the named rounds into `out`.

    It may be a message-based strategy (`flwr.serverapp.strategy`) or one of the older kind (`flwr.server.strategy`).
    With `secure_aggregation` only the mean of the replies is written, with the number of clients; under
    Flower's SecAgg+ workflow, where every reply is that mean already, this happens by itself. `client` is the rule by
    which clients train; under fedsgd replies are taken for gradients, under fedavg for weights. `defenses` and
    `notes` go into the manifests: what clients do to their updates, and what the rule describes only roughly.
    """
    recorder = Recorder.of(out, model, client, defenses, known, notes)
    server = _Server(recorder, model, tokenizer, frozenset(rounds), secure_aggregation)
    if hasattr(strategy, "configure_train"):
        _before(strategy, "configure_train", lambda number, arrays, *_: server.sent(number, arrays, _tensors))
        _before_replies(strategy, server)
    elif hasattr(strategy, "configure_fit"):
        _before(strategy, "configure_fit", lambda number, arrays, *_: server.sent(number, arrays, _numbered))
        _before(strategy, "aggregate_fit", lambda number, results, *_: server.received(number, results, _old_replies))
    else:
        raise GradleakError(f"{type(strategy).__name__} is not a Flower strategy")
    return strategy


def record_on_client(
    out: str | Path,
    model: Any,
    *,
    client: ClientRule | str,
    rounds: Collection[int] = (1,),
    defenses: Sequence[str] = (),
    known: Collection[str] = RECORDABLE,
    notes: Sequence[str] = (),
) -> Callable[[Any, Any, Callable[[Any, Any], Any]], Any]:
    """A mod that writes what this client sends in the named rounds.

    Mods act from the last in the list to the first, so put it first to see what all others made of the update. Before
    (in the list: after) `secaggplus_mod` it sees the client's own update, which the server then never does.
    """
    recorder = Recorder.of(out, model, client, defenses, known, notes)
    chosen = frozenset(rounds)

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        number = _round(message)
        wanted = message.metadata.message_type.startswith("train") and number in chosen
        arrays = _first(message.content.array_records) if wanted else {}  # now: clients may empty the message
        before = recorder.form.named(arrays) if arrays else {}
        reply = call_next(message, context)
        if before and not reply.has_error() and (after := _first(reply.content.array_records)):
            sent = Reply(f"client-{context.node_id}", after, _sentences(reply.content.metric_records))
            _write(recorder, number, before, sent)
        return reply

    return mod


class _Server:
    """Keeps the weights that a round began with until its replies come."""

    def __init__(self, recorder: Recorder, model: Any, tokenizer: Any, rounds: frozenset[int], secure: bool) -> None:
        self.recorder, self.model, self.tokenizer = recorder, model, tokenizer
        self.rounds, self.secure = rounds, secure
        self.weights: dict[str, Tensor] = {}

    def sent(self, number: int, arrays: Any, read: Callable[[Any], dict[str, Tensor]]) -> None:
        if number in self.rounds:
            self.weights = self.recorder.form.named(read(arrays))  # what does not fit is an error before training
            save_with(self.model, self.weights, self.tokenizer, _place(self.recorder, number, MODEL))

    def received(self, number: int, messages: Any, read: Callable[[Any], tuple[list[Reply], bool]]) -> None:
        """`read` gives the replies, and whether they are one and the same: what SecAgg+ let the server see."""
        if number not in self.rounds:
            return
        replies, masked = read(messages)
        if replies and (self.secure or masked):
            notes = [*self._reservations(replies), *([GRID] if masked else [])]
            _write(self.recorder, number, self.weights, together(replies), clients=len(replies), notes=notes)
        else:
            for reply in replies:
                _write(self.recorder, number, self.weights, reply)

    def _reservations(self, replies: Sequence[Reply]) -> list[str]:
        """In what the mean of these replies differs from one client with all their sentences."""
        unequal = len({reply.sentences for reply in replies}) > 1
        notes = [UNEQUAL] if unequal and self.recorder.rule.local else []
        return notes if text_task(self.recorder.form.task).one_per_text else [*notes, TOKENS]


def together(replies: Sequence[Reply]) -> Reply:
    """What secure aggregation reveals: the mean of the replies, each weighing as many sentences as it has.

    If not all report their number, they weigh alike.

    >>> replies = [Reply("a", {"w": torch.tensor([1.0])}, 3), Reply("b", {"w": torch.tensor([5.0])}, None)]
    >>> together(replies).tensors["w"].tolist(), together(replies).sentences
    ([3.0], None)
    """
    counts = [reply.sentences for reply in replies if reply.sentences is not None]
    all_counted = len(counts) == len(replies)
    weights = torch.tensor(counts if all_counted else [1] * len(replies), dtype=torch.float64)
    shares = weights / weights.sum()
    tensors = {
        name: torch.tensordot(shares, torch.stack([reply.tensors[name].double() for reply in replies]), dims=1)
        for name in replies[0].tensors
        if all(name in reply.tensors for reply in replies)
    }
    return Reply("aggregate", tensors, sum(counts) if all_counted else None)


def _write(recorder: Recorder, number: int, before: Mapping[str, Tensor], reply: Reply, **more: Any) -> None:
    """One folder; a reply that cannot be recorded, such as one that diverged, must not end the training."""
    try:
        recorder.write(_place(recorder, number, reply.name), before, reply.tensors, sentences=reply.sentences, **more)
    except GradleakError as error:
        log.warning("round %d: the update of %s was not recorded: %s", number, reply.name, error)


def _place(recorder: Recorder, number: int, name: str) -> Path:
    return recorder.out / f"round-{number:04d}" / name


def _before(strategy: Any, method: str, look: Callable[..., None]) -> None:
    """Let `look` see the arguments of a method before the method does."""
    original = getattr(strategy, method)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        look(*inspect.signature(original).bind(*arguments, **named).args)
        return original(*arguments, **named)

    setattr(strategy, method, wrapped)


def _before_replies(strategy: Any, server: _Server) -> None:
    original = strategy.aggregate_train

    @functools.wraps(original)
    def wrapped(server_round: int, replies: Iterable[Any]) -> Any:
        received = list(replies)  # they may come as a stream, which can be read once
        server.received(server_round, received, _replies)
        return original(server_round, received)

    strategy.aggregate_train = wrapped


def _replies(messages: Sequence[Any]) -> tuple[list[Reply], bool]:
    fine = [message for message in messages if not message.has_error()]
    return [
        Reply(
            f"client-{message.metadata.src_node_id}",
            _first(message.content.array_records),
            _sentences(message.content.metric_records),
        )
        for message in fine
    ], False


def _old_replies(results: Sequence[tuple[Any, Any]]) -> tuple[list[Reply], bool]:
    """The replies to an older strategy, and whether they are all one: SecAgg+ puts the mean in the place of each."""
    replies = [
        Reply(f"client-{proxy.cid}", _numbered(result.parameters), result.num_examples) for proxy, result in results
    ]
    same = len(results) > 1 and len({id(result.parameters) for _, result in results}) == 1
    return replies, same


def _tensors(arrays: Any) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}


def _numbered(parameters: Any) -> dict[str, Tensor]:
    """The arrays of older strategies, which have no names."""
    from flwr.common import parameters_to_ndarrays

    return {str(i): torch.from_numpy(array.copy()) for i, array in enumerate(parameters_to_ndarrays(parameters))}


def _first(records: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a message: of its first record of arrays, since strategies that send more keep weights there."""
    return next((_tensors(record) for record in records.values()), {})


def _sentences(records: Mapping[str, Any]) -> int | None:
    counts = [record[name] for record in records.values() for name in COUNTS if name in record]
    return int(counts[0]) if counts and counts[0] >= 1 else None


def _round(message: Any) -> int:
    """The round a message belongs to: strategies put it in the configuration, older ones as the message's group."""
    for record in message.content.config_records.values():
        if "server-round" in record:
            return int(record["server-round"])
    group = str(message.metadata.group_id)
    return int(group) if group.isdigit() else 0
