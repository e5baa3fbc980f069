"""One round of a client that trains fresh LoRA adapters by AdamW: the adapters before and after, as peft writes them.

    python examples/lora_first_round.py --model BASE --data sentences.json --out round
    gradleak convert --model BASE --before round/before --after round/after \
        --client adamw:lr=2e-4,steps=1,batch=4 --batch-size 4 --out update
    gradleak attack update --model update.model --budget 12m --out attacked

It uses nothing of gradleak, as no client of yours would.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="a folder with a causal language model and its tokenizer")
    parser.add_argument("--data", type=Path, required=True, help="a JSON list of sentences")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=4)
    parser.add_argument("--seed", type=int, default=424242, help="which sentences the client has")
    given = parser.parse_args()

    torch.manual_seed(3)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    base = AutoModelForCausalLM.from_pretrained(given.model)
    settings = LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(base, settings)
    model.save_pretrained(given.out / "before")

    texts = [text for text in json.loads(given.data.read_text(encoding="utf-8")) if text.strip()]
    private = random.Random(given.seed).sample(texts, given.sentences)
    rows = [tokenizer(text)["input_ids"] for text in private]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-4)
    model.train()
    model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
    optimiser.step()
    model.save_pretrained(given.out / "after")


if __name__ == "__main__":
    main()
