"""A run of Hugging Face's Trainer that leaves update folders to attack.

    python examples/trainer_run.py --out trainer-updates
    gradleak attack trainer-updates/step-000001/update --model trainer-updates/step-000001/model

One line is gradleak's: the callback. With --steps 4 the update is how far four steps moved the weights, as a client
would send it that trains for a while; without, it is the gradient of the first step.
"""

import argparse
from pathlib import Path

from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

from gradleak import load_model
from gradleak.data.texts import read_data
from gradleak.updates.integrations.hf_trainer import RecordUpdates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm", help="built-in name, Hugging Face folder or hub id")
    parser.add_argument("--out", default="trainer-updates")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, help="write the weights that so many steps moved, not a gradient")
    given = parser.parse_args()

    target = load_model(given.model)  # AutoModelForSequenceClassification.from_pretrained would do as well
    rows = [
        {**target.tokenizer(row.text), "labels": number % target.num_labels}
        for number, row in enumerate(read_data()[: 8 * given.batch_size])
    ]
    trainer = Trainer(
        target.module,
        TrainingArguments(
            output_dir=f"{given.out}-trainer",
            per_device_train_batch_size=given.batch_size,
            max_steps=given.steps or 1,
            optim="sgd",
            learning_rate=0.01,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=rows,
        data_collator=DataCollatorWithPadding(target.tokenizer),
        processing_class=target.tokenizer,
        callbacks=[RecordUpdates(given.out, steps=given.steps)],
    )
    trainer.train()
    for folder in sorted(Path(given.out).glob("step-*")):
        print(f"gradleak attack {folder / 'update'} --model {folder / 'model'}")


if __name__ == "__main__":
    main()
