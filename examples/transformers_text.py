"""Fine-tune a small text classifier with Hugging Face Trainer and selection. Nothing is downloaded.

pip install 'selective-backprop[transformers]'
python examples/transformers_text.py
"""

import argparse
import random
import tempfile

import torch

try:
    import accelerate  # noqa: F401, because Trainer misses it only when a run is set up
    import numpy as np
    from transformers import BertConfig, BertForSequenceClassification, TrainingArguments, set_seed
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install 'selective-backprop[transformers]'") from None

import selective_backprop as sb
from selective_backprop.integrations.transformers import SelectiveTrainer

GOOD, BAD = ["good", "great", "fine", "lovely"], ["bad", "awful", "dull", "poor"]
THINGS = ["film", "book", "meal", "song", "trip", "game"]
WORDS = ["[PAD]", "[CLS]", "the", "was", "not", "and", "but", "very", *THINGS, *GOOD, *BAD]


def review(rng: random.Random) -> dict:
    """A review and its label. Most are easy; one in five has a "not", which reverses its meaning and makes it hard."""
    label = rng.randrange(2)
    negated = rng.random() < 0.2
    word = rng.choice(GOOD if label != negated else BAD)
    sentence = ["the", rng.choice(THINGS), "was", *["very"] * rng.randrange(3), *["not"] * negated, word]
    while rng.random() < 0.4:
        sentence += ["and", "the", rng.choice(THINGS)]
    return {"input_ids": [1] + [WORDS.index(word) for word in sentence], "labels": label}


def collate(examples: list) -> dict:
    """Pad all reviews to the longest one of the batch."""
    length = max(len(example["input_ids"]) for example in examples)
    ids = torch.tensor([example["input_ids"] + [0] * (length - len(example["input_ids"])) for example in examples])
    labels = torch.tensor([example["labels"] for example in examples])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def main() -> None:
    """Train, and print how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--loss-share", type=float, default=0.95, help="share of the loss to train on")
    options = parser.parse_args()

    rng = random.Random(0)
    train, test = [review(rng) for _ in range(1536)], [review(rng) for _ in range(512)]
    set_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = SelectiveTrainer(  # instead of Trainer
            model=BertForSequenceClassification(config),
            args=TrainingArguments(
                output_dir=folder,
                num_train_epochs=options.epochs,
                per_device_train_batch_size=16,
                per_device_eval_batch_size=64,
                learning_rate=2e-3,
                eval_strategy="epoch",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=train,
            eval_dataset=test,
            data_collator=collate,
            compute_metrics=lambda found: {"accuracy": float(np.mean(found.predictions.argmax(-1) == found.label_ids))},
            method=sb.ledger_backprop(loss_share=options.loss_share),  # new
        )
        trainer.train()
        print(trainer.selective_loader.stats)
        print(f"test accuracy {trainer.evaluate()['eval_accuracy']:.3f}")


if __name__ == "__main__":
    main()
