"""A real Flower run that leaves update folders to attack.

    pip install "gradleak[flower]"
    python examples/flower_run.py --out flower-updates
    gradleak attack flower-updates/round-0001/client-... --model flower-updates/round-0001/model

Three clients train a classifier on two private sentences each, by Flower's simulation engine. Two calls are ours:
`record_on_server` around the strategy and, with --on-clients, `record_on_client` among the mods.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # before Flower is imported: it would report the run
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from gradleak import load_model
from gradleak.data.texts import read_data
from gradleak.updates.integrations.flower import record_on_client, record_on_server

EPOCHS, BATCH, LR = 1, 2, 0.01
RULE = f"fedavg:epochs={EPOCHS},batch={BATCH},lr={LR}"


def private_rows(client: int, sentences: int) -> list[tuple[str, int]]:
    """The client's own sentences with made-up labels; in your project, its data set."""
    rows = read_data()[client * sentences : (client + 1) * sentences]
    return [(row.text, number % 2) for number, row in enumerate(rows)]


def make_client_app(model: str, sentences: int, record_into: str | None) -> ClientApp:
    mods = [record_on_client(record_into, load_model(model).module, client=RULE)] if record_into else []
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        target = load_model(model)
        module, tokenizer = target.module, target.tokenizer
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        rows = private_rows(int(context.node_config["partition-id"]), sentences)
        optimizer = torch.optim.SGD(module.parameters(), lr=LR)
        for _ in range(EPOCHS):
            for first in range(0, len(rows), BATCH):
                texts, labels = zip(*rows[first : first + BATCH], strict=True)
                batch = tokenizer(list(texts), padding=True, return_tensors="pt")
                optimizer.zero_grad()
                module(**batch, labels=torch.tensor(labels)).loss.backward()
                optimizer.step()
        arrays, metrics = ArrayRecord(module.state_dict()), MetricRecord({"num-examples": len(rows)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def make_server_app(model: str, out: str, rounds: int, secure: bool) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        target = load_model(model)
        strategy = record_on_server(
            FedAvg(fraction_evaluate=0.0),
            out,
            target.module,
            target.tokenizer,
            client=RULE,
            rounds=range(1, rounds + 1),
            secure_aggregation=secure,
        )
        strategy.start(grid, ArrayRecord(target.module.state_dict()), num_rounds=rounds)

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm", help="built-in name or Hugging Face folder")
    parser.add_argument("--out", default="flower-updates")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=2, help="of each client")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--secure", action="store_true", help="record the aggregate only, as if aggregated securely")
    parser.add_argument("--on-clients", action="store_true", help="record on the clients too, into OUT-on-clients")
    given = parser.parse_args()
    out = str(Path(given.out).resolve())  # clients may run in other folders
    run_simulation(
        make_server_app(given.model, out, given.rounds, given.secure),
        make_client_app(given.model, given.sentences, f"{out}-on-clients" if given.on_clients else None),
        num_supernodes=given.clients,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"include_dashboard": False}},
    )
    for folder in sorted(Path(out).glob("round-*/*/manifest.json")):
        print(f"gradleak attack {folder.parent} --model {folder.parent.parent / 'model'}")


if __name__ == "__main__":
    main()
