"""A training loop that knows nothing of gradleak leaves two files of weights; `gradleak convert` reads them.

python examples/convert_files.py
gradleak convert --before before.pt --after after.pt --lr 0.01 --steps 2 --batch-size 4 --out converted
gradleak attack converted
"""

import argparse

import torch

from gradleak import load_model
from gradleak.data.texts import read_data

LR, STEPS, SENTENCES = 0.01, 2, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm", help="built-in name, Hugging Face folder or hub id")
    given = parser.parse_args()

    target = load_model(given.model)
    module = target.module
    texts = [row.text for row in read_data()[:SENTENCES]]
    labels = torch.arange(SENTENCES) % target.num_labels
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    batch = target.tokenizer(texts, padding=True, return_tensors="pt")

    torch.save(module.state_dict(), "before.pt")
    for _ in range(STEPS):
        optimizer.zero_grad()
        module(**batch, labels=labels).loss.backward()
        optimizer.step()
    torch.save({"state_dict": module.state_dict(), "epoch": 1}, "after.pt")
    print(
        f"gradleak convert --model {given.model} --before before.pt --after after.pt --lr {LR} --steps {STEPS} "
        f"--batch-size {SENTENCES} --out converted"
    )


if __name__ == "__main__":
    main()
