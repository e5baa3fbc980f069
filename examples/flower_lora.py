"""A real Flower run whose clients train LoRA adapters by AdamW and send nothing else.

    pip install "gradleak[flower,lora]"
    python examples/flower_lora.py --model smollm2 --out lora-updates
    gradleak attack lora-updates/round-0001/client-... --model lora-updates/round-0001/model

Three clients have four private sentences each and take four steps over them, by Flower's simulation engine. One
call is ours: `record_on_server` around the strategy. Each client also writes its sentences into OUT/truth, which no
client of yours would: `gradleak attack --truth` compares with them once the attack has ended.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # before Flower is imported: it would report the run
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

from gradleak import load_model
from gradleak.data.texts import read_data
from gradleak.updates.integrations.flower import record_on_server

EPOCHS, BATCH, LR = 2, 2, 2e-4
RULE = f"adamw:epochs={EPOCHS},batch={BATCH},lr={LR}"


def private_rows(client: int, sentences: int) -> tuple[list[str], list[int]]:
    """The client's own sentences, with made-up labels for a classifier; in your project, its data set."""
    rows = read_data()[client * sentences : (client + 1) * sentences]
    return [row.text for row in rows], [number % 2 for number in range(len(rows))]


def with_adapters(source: str) -> tuple[Any, Any]:
    """The model with fresh adapters, and its tokenizer."""
    target = load_model(source)
    target.module.config.name_or_path = source  # as from_pretrained leaves it: the adapters' folder names the base
    # Without targets peft takes queries and values, as for BERT and Llama.
    return get_peft_model(target.module, LoraConfig(r=8, lora_alpha=16)), target.tokenizer


def is_classifier(model: Any) -> bool:
    return "SequenceClassification" in type(model.get_base_model()).__name__


def inputs_of(texts: list[str], labels: list[int], model: Any, tokenizer: Any) -> dict[str, Any]:
    """A mini-batch as the model reads it: a classifier learns the labels, a language model the tokens themselves."""
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    if is_classifier(model):
        return {**batch, "labels": torch.tensor(labels)}
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def make_client_app(source: str, sentences: int, truth: Path) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, tokenizer = with_adapters(source)
        set_peft_model_state_dict(model, message.content["arrays"].to_torch_state_dict())
        texts, labels = private_rows(int(context.node_config["partition-id"]), sentences)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR)
        for _ in range(EPOCHS):
            for first in range(0, len(texts), BATCH):
                rows = slice(first, first + BATCH)
                optimizer.zero_grad()
                model(**inputs_of(texts[rows], labels[rows], model, tokenizer)).loss.backward()
                optimizer.step()
        known = {"texts": texts, **({"labels": labels} if is_classifier(model) else {})}
        truth.mkdir(parents=True, exist_ok=True)
        (truth / f"client-{context.node_id}.json").write_text(json.dumps(known))
        # The adapters alone: the model below them stays where it is.
        arrays, metrics = ArrayRecord(get_peft_model_state_dict(model)), MetricRecord({"num-examples": len(texts)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def make_server_app(source: str, out: str) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        model, tokenizer = with_adapters(source)
        strategy = record_on_server(FedAvg(fraction_evaluate=0.0), out, model, tokenizer, client=RULE)
        strategy.start(grid, ArrayRecord(get_peft_model_state_dict(model)), num_rounds=1)

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="built-in name or Hugging Face folder")
    parser.add_argument("--out", default="lora-updates")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=4, help="of each client")
    given = parser.parse_args()
    # Clients may run in other folders.
    out = Path(given.out).resolve()
    source = str(Path(given.model).resolve()) if Path(given.model).is_dir() else given.model
    run_simulation(
        make_server_app(source, str(out)),
        make_client_app(source, given.sentences, out / "truth"),
        num_supernodes=given.clients,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"include_dashboard": False}},
    )
    for folder in sorted(out.glob("round-*/*/manifest.json")):
        truth = out / "truth" / f"{folder.parent.name}.json"
        print(f"gradleak attack {folder.parent} --model {folder.parent.parent / 'model'} --truth {truth}")


if __name__ == "__main__":
    main()
