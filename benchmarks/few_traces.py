"""Fine-tune a small causal model on few worked sums for many epochs, and skip what is memorised.

    python benchmarks/few_traces.py RESULTS [--seeds 0 1 2] [--epochs 16 32 64 128]

The protocol is in results/few-traces/PROTOCOL.md. Runs that are in RESULTS/runs.jsonl are not repeated. One thread.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop_lab.runs.records import environment

CHARACTERS = "0123456789+=;. "
TRACES, MANY, TESTED, BATCH = 400, 51_200, 1_000, 16
IGNORED = -100
PROMPT = 8  # characters of "347+589="


def trace(first: int, second: int) -> str:
    """A worked sum: a step per digit from the right, with its carry.

    >>> trace(347, 589)
    '347+589=7+9=16;4+8+1=13;3+5+1=09;0936.'
    """
    steps, carry = [], 0
    for place in range(3):
        digits = [first // 10**place % 10, second // 10**place % 10]
        total = sum(digits) + carry
        steps.append("+".join(map(str, digits + ([carry] if place else []))) + f"={total:02d};")
        carry = total // 10
    return f"{first:03d}+{second:03d}=" + "".join(steps) + f"{first + second:04d}."


def encode(texts: list[str]) -> Tensor:
    return torch.tensor([[CHARACTERS.index(letter) for letter in text] for text in texts])


def problems(count: int, seed: int) -> Tensor:
    draw = random.Random(seed)
    return encode([trace(draw.randrange(1000), draw.randrange(1000)) for _ in range(count)])


class Model(nn.Module):
    """A causal transformer over characters."""

    def __init__(self, width: int = 96, depth: int = 4, length: int = 40) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(CHARACTERS), width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(CHARACTERS))

    def forward(self, letters: Tensor) -> Tensor:
        size = letters.shape[1]
        hidden = self.letters(letters) + self.places.weight[:size]
        mask = nn.Transformer.generate_square_subsequent_mask(size)
        outputs: Tensor = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return outputs


def next_letters(texts: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a causal model; the problem itself is not to be learned."""
    targets = texts[:, 1:].clone()
    targets[:, : PROMPT - 1] = IGNORED
    return texts[:, :-1], targets


def pretrained(seed: int) -> Model:
    """A model that knows sums of single digits, with a carry."""
    torch.manual_seed(seed)
    model, draw = Model(), random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2000):
        texts = []
        for _ in range(64):
            parts = [draw.randrange(10), draw.randrange(10), draw.randrange(2)]
            fact = "+".join(map(str, parts)) + f"={sum(parts):02d};"
            texts.append((fact * 5)[:38])
        batch = encode(texts)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@torch.no_grad()
def error(model: Model, texts: Tensor) -> float:
    """Share of problems whose sum is wrong, by greedy decoding."""
    model.eval()
    written = texts[:, :PROMPT]
    while written.shape[1] < texts.shape[1]:
        written = torch.cat([written, model(written)[:, -1:].argmax(2)], dim=1)
    return float((written[:, -5:] != texts[:, -5:]).any(1).double().mean())


def fine_tune(base: Model, method: sb.Method, epochs: int, seed: int, texts: Tensor) -> dict[str, Any]:
    model = copy.deepcopy(base)
    torch.manual_seed(seed)
    data = DataLoader(
        TensorDataset(*next_letters(texts)), BATCH, shuffle=True, generator=torch.Generator().manual_seed(seed)
    )
    loss_fn = sb.losses.PerExampleLoss(sb.token_cross_entropy, reducer="mean")
    loader = sb.SelectiveLoader(data, model, loss_fn, method, num_epochs=epochs, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    trained, counts = 0, []
    for _ in range(epochs):
        model.train()
        for inputs, targets in loader:
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * (1 - loader.progress)
            optimizer.zero_grad()
            loader.loss(model(inputs), targets).backward()
            optimizer.step()
        counts.append(loader.stats.trained - trained)
        trained = loader.stats.trained
    wrong = error(model, problems(TESTED, seed=10_000 + seed))
    return {"error": wrong, "tokens": trained * (texts.shape[1] - PROMPT), "trained": counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, nargs="+", default=[16, 32, 64, 128])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = arguments.results / "runs.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {(row["arm"], row["epochs"], row["seed"]): row for row in rows}
    made = {key: environment()[key] for key in ("commit", "torch", "cpu", "date")}

    def run(base: Model, arm: str, epochs: int, seed: int, method: sb.Method, texts: Tensor) -> dict[str, Any]:
        if (arm, epochs, seed) not in known:
            row = {"arm": arm, "epochs": epochs, "seed": seed, **fine_tune(base, method, epochs, seed, texts)}
            with file.open("a") as out:
                out.write(json.dumps(row | {"made": made}) + "\n")
            print(f"{arm}, {epochs} epochs, seed {seed}: {row['error']:.1%}, {row['tokens']:,} tokens", flush=True)
            known[arm, epochs, seed] = row
        return known[arm, epochs, seed]

    for seed in arguments.seeds:
        base, few = pretrained(seed), problems(TRACES, seed)
        for epochs in arguments.epochs:
            run(base, "plain", epochs, seed, sb.traditional(), few)
            run(base, "random halves", 2 * epochs, seed, sb.repeated_random(0.5), few)
            ledger = run(base, "ledger", 3 * epochs // 2, seed, sb.ledger_backprop(), few)
            shares = [max(1, count) / TRACES for count in ledger["trained"]]
            run(base, "random as ledger", 3 * epochs // 2, seed, sb.repeated_random(shares), few)
        run(base, "plain on 51,200", 1, seed, sb.traditional(), problems(MANY, seed))


if __name__ == "__main__":
    main()
