"""A Flower run within one process: real apps, strategies and messages, handed over without a network."""

from __future__ import annotations

import copy
import os
from types import SimpleNamespace

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from gradleak.updates.client_rule import ClientRule

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # older Flower: messages do not ask whose they are
    TaskIdentity = SimpleNamespace()

TEXTS = [
    ["Rosa moved to ward six.", "The loan was refused."],
    ["Your flight leaves at noon on Friday.", "She owes the bank."],
    ["The biopsy came back.", "He was held by customs."],
]
LABELS = [0, 1]


class LocalGrid(Grid):
    """Hands every message to the app as the node it is for; nodes keep their context as Flower's do."""

    def __init__(self, app, nodes=3):
        self.app = app
        # Messages of newer versions ask whose they are; the simulation engine sets this for its server.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.contexts = {
            100 + i: Context(1, 100 + i, {"partition-id": i}, RecordDict(), run_config={}) for i in range(nodes)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        return [self.app(copy.deepcopy(each), self.contexts[each.metadata.dst_node_id]) for each in messages]

    def set_run(self, run):
        raise NotImplementedError

    run = SimpleNamespace(run_id=1)

    def create_message(self, *arguments, **named):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError


def train(target, texts, labels, rule: ClientRule):
    """Plain SGD of the model the target holds, as somebody who does not know gradleak would write it."""
    module = target.module
    optimizer = torch.optim.SGD(module.parameters(), lr=rule.lr)
    size = len(texts) if rule.name == "fedsgd" else rule.batch
    for _ in range(rule.epochs):
        for first in range(0, len(texts), size):
            batch = target.encode(texts[first : first + size])
            inputs = {"input_ids": batch.ids, "attention_mask": batch.mask.long()}
            if target.task == "classification":
                wanted = torch.tensor(labels[first : first + size])
            else:
                wanted = batch.ids.masked_fill(~batch.mask, -100)
            optimizer.zero_grad()
            module(**inputs, labels=wanted).loss.backward()
            if rule.name == "fedavg":
                optimizer.step()


def client_app(target, rule: ClientRule, mods=(), texts=TEXTS, spoil=None):
    """Clients that train a copy of the target and send weights, or under fedsgd the gradient."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def fit(message, context):
        number = context.node_config["partition-id"]
        own = target.copied()
        own.module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(own, texts[number], LABELS, rule)
        state = own.module.state_dict()
        if rule.name == "fedsgd":
            state = {name: p.grad for name, p in own.module.named_parameters() if p.grad is not None}
        if spoil == number:
            state = {name: tensor * float("nan") for name, tensor in state.items()}
        metrics = MetricRecord({"num-examples": len(texts[number])})
        return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)

    return app


class OldClient(NumPyClient):
    """The older kind, which sends arrays without names."""

    def __init__(self, target, texts, rule):
        self.target, self.texts, self.rule = target, texts, rule

    def get_parameters(self, config):
        return [np.asarray(tensor) for tensor in self.target.module.state_dict().values()]

    def fit(self, parameters, config):
        own = self.target.copied()
        names = own.module.state_dict()
        own.module.load_state_dict(
            {name: torch.from_numpy(array.copy()) for name, array in zip(names, parameters, strict=True)}
        )
        train(own, self.texts, LABELS, self.rule)
        return [tensor.numpy() for tensor in own.module.state_dict().values()], len(self.texts), {}


def old_client_app(target, rule: ClientRule, mods=(), texts=TEXTS):
    return ClientApp(
        client_fn=lambda context: OldClient(target, texts[context.node_config["partition-id"]], rule).to_client(),
        mods=list(mods),
    )
