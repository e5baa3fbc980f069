"""What `exact` reads of real shapes of encoder-decoders: `python -m gradleak.bench.pairs --family t5 --out FILE`.

Weights are drawn as the library draws them before any training; the shapes are those of T5-small and BART-base, the
tokenizer is MiniLM's. Sources and targets are sentences of the built-in corpus, drawn by consecutive seeds. The
attacker knows the tensors and nothing else.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch

from gradleak.attacks.run import attack
from gradleak.bench.provenance import ABOUT, about
from gradleak.clients.text import Client
from gradleak.core.files import write_text
from gradleak.core.output import say
from gradleak.data.texts import read_data
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel

FIRST_SEED = 1000


def drawn(family: str) -> TextModel:
    """A model of the shape of T5-small or BART-base with weights that were never trained."""
    import transformers

    tokenizer = load_text_model("minilm").tokenizer
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.sep_token_id}
    torch.manual_seed(0)
    config: Any
    if family == "t5":
        config = transformers.T5Config(
            vocab_size=len(tokenizer), decoder_start_token_id=tokenizer.pad_token_id, **special
        )
    else:
        config = transformers.BartConfig(
            vocab_size=len(tokenizer), d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12,
            decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
            bos_token_id=tokenizer.cls_token_id, decoder_start_token_id=tokenizer.sep_token_id, **special,
        )  # fmt: skip
    module = transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager")
    return load_text_model(module, tokenizer=tokenizer, name=f"a drawn {family}")


def one(model: TextModel, size: int, seed: int, budget: float) -> dict[str, Any]:
    """A batch of pairs: how many of its texts and of its pairs are proved, how many certificates are wrong."""
    texts = random.Random(seed).sample([row.text for row in read_data()], 2 * size)
    sources, targets = texts[:size], texts[size:]
    (found,) = attack(Client(model, known=()).update(sources, targets), model, "exact", seed=seed, budget=budget)
    truth = {
        (side, model.decode(row))
        for side, own in (("source", sources), ("target", targets))
        for row in model.encode(own).sentences()
    }
    proved = [sentence for sentence in found.sentences if sentence.certified]
    right = {(sentence.side, sentence.text) for sentence in proved} & truth
    own, other = ([model.decode(row) for row in model.encode(side).sentences()] for side in (sources, targets))
    pairs = dict(zip(own, other, strict=True))
    numbered = {(s.example, s.side): s.text for s in proved if s.example is not None}
    joined = sum(
        numbered.get((number, "target")) == pairs.get(text)
        for (number, side), text in numbered.items()
        if side == "source"
    )
    return {
        "size": size,
        "seed": seed,
        "sources": sum(side == "source" for side, _ in right),
        "targets": sum(side == "target" for side, _ in right),
        "pairs": joined,
        "wrong": sum((sentence.side, sentence.text) not in truth for sentence in proved),
        "tokens": [len(row) for row in model.encode(texts).sentences()],
        "seconds": round(found.seconds, 1),
        "status": found.status,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=("t5", "bart"), required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--budget", type=float, default=120.0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    model = drawn(asked.family)
    runs: list[dict[str, Any]] = []
    for size in asked.sizes:
        for number in range(asked.batches):
            runs.append(one(model, size, FIRST_SEED + number, asked.budget))
            say(json.dumps(runs[-1]))
            kept = {ABOUT: about(model.name, "the built-in corpus"), "family": asked.family, "budget": asked.budget}
            write_text(asked.out, json.dumps({**kept, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
