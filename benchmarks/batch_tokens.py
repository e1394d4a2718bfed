"""Do training batches of texts of similar length pay? Fine-tune on texts of very different lengths.

    python benchmarks/batch_tokens.py                # minutes of pre-training, then 10 seeds
    python benchmarks/batch_tokens.py --seeds 2

The text ships with packages that are installed anyway: docstrings, which have between 10 and 128 tokens here. A small
language model is pre-trained on docstrings of torch and numpy, and then fine-tuned for 3 epochs on docstrings of
scikit-learn. Equal texts are left out, and so are texts of scikit-learn whose name also occurs in the others.

All arms select by the loss per token. Every run decays its learning rate to zero within its own budget. The cost of a
run is its seconds in training steps, and the tokens that went through the model in them, padding included. The compute
multiplier is that of the lab, in tokens and in seconds: how many times more plain training needs for the same held-out
loss.
"""

import argparse
import ast
import contextlib
import hashlib
import importlib.util
import json
import math
import platform
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import selective_backprop as sb
from selective_backprop_lab.study.frontier import Budget, Frontier, compute_multiplier

VOCABULARY, LONGEST, WIDTH, LAYERS = 2048, 128, 128, 4
EPOCHS, BATCH = 3, 16
PAD = sb.pad_to_longest({0: 0, 1: -100})


# ---- text


def docstrings(packages):
    """The docstrings of functions and classes of installed packages: (name, text)."""
    for package in packages:
        for path in sorted(Path(importlib.util.find_spec(package).submodule_search_locations[0]).rglob("*.py")):
            with contextlib.suppress(SyntaxError, UnicodeDecodeError, RecursionError):
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
                        yield node.name, text


def words(text):
    return re.findall(r"\w+|[^\w\s]|\n", text)


def read_text(cache):
    """Pre-training and fine-tuning texts as lists of token ids; read once and then kept in a file."""
    path = Path(cache) / "batch-tokens-text.json"
    if not path.exists():
        tuning = {text: name for name, text in docstrings(["sklearn"])}
        names = set(tuning.values())
        before = {text: None for name, text in docstrings(["torch", "numpy"]) if name not in names}
        counts = {}
        for text in before:
            for word in words(text):
                counts[word] = counts.get(word, 0) + 1
        known = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - 3]
        number = {word: index + 3 for index, word in enumerate(known)}  # 0 pads, 1 begins a text, 2 is unknown

        def encode(text):
            return [1, *(number.get(word, 2) for word in words(text))]

        found = {"before": [encode(text) for text in before], "tuning": {}}
        for text in tuning:
            side = "test" if hashlib.sha256(text.encode()).digest()[0] < 40 else "train"
            found["tuning"].setdefault(side, []).append(encode(text)[:LONGEST])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    found = json.loads(path.read_text())
    return found["before"], {side: [t for t in texts if len(t) >= 10] for side, texts in found["tuning"].items()}


def collate(texts):
    """Inputs and next tokens, padded to the longest."""
    rows = nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    return rows[:, :-1], rows[:, 1:].masked_fill(rows[:, 1:] == 0, -100)


# ---- the model


class Model(nn.Module):
    """A causal transformer whose cost has a part per example, per token and per pair of tokens."""

    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)

    def forward(self, tokens):
        hidden = self.embed(tokens) + self.places(torch.arange(tokens.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return F.linear(self.layers(hidden, mask=mask, is_causal=True), self.embed.weight)


def pre_train(cache, texts, steps):
    """The weights of a model that was pre-trained once and then kept, and a line about it."""
    path = Path(cache) / f"batch-tokens-model-{steps}.pt"
    if not path.exists():
        torch.manual_seed(0)
        model = Model()
        nn.init.normal_(model.embed.weight, std=0.05)
        tokens = torch.tensor([token for text in texts for token in text])
        rows = tokens[: len(tokens) // 128 * 128].view(-1, 128)
        optimizer = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.1)
        draws, began, losses = torch.Generator().manual_seed(0), time.perf_counter(), []
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = 2e-3 * min(1, (step + 1) / 50, 1.25 * (1 - step / steps))
            batch = rows[torch.randint(len(rows), (8,), generator=draws)]
            loss = sb.token_cross_entropy(model(batch[:, :-1]), batch[:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        size = sum(parameter.numel() for parameter in model.parameters())
        about = (
            f"{size / 1e6:.2f} million parameters, pre-trained on {len(tokens):,} tokens for {steps} steps of 8 x 128 "
            f"tokens in {(time.perf_counter() - began) / 60:.1f} minutes, to a loss of "
            f"{statistics.fmean(losses[-50:]):.2f}"
        )
        torch.save({"model": model.state_dict(), "about": about}, path)
    return torch.load(path, weights_only=True)


def held_out_loss(model, texts):
    """Mean loss per token of held-out texts, sorted by length so that little is padded."""
    total = count = 0
    with torch.no_grad():
        for batch in DataLoader(sorted(texts, key=len), 32, collate_fn=collate):
            losses = sb.token_cross_entropy(model(batch[0]), batch[1], reduction="none")
            total += float(losses.sum())
            count += int((batch[1] != -100).sum())
    return total / count


# ---- runs


def arms(lengths):
    """All arms by name: method, options of the loader, and epochs of candidates."""
    tokens = BATCH * int(lengths.float().mean())  # as many as a batch of the others has without its padding
    bucketed = {"batch_tokens": tokens}
    return {
        **{f"plain, {epochs:g} epochs": (sb.traditional(), {}, epochs) for epochs in (1, 2, 3)},
        "everything, batches by tokens": (sb.traditional(), bucketed, EPOCHS),
        "random subsets": (sb.random_backprop(1 / 2), {}, EPOCHS),
        "ledger": (sb.methods.ledger_percentile(1 / 2), {}, EPOCHS),
        "ledger, batches by tokens": (sb.methods.ledger_percentile(1 / 2), bucketed, EPOCHS),
    }


def run(weights, data, method, options, epochs, seed):
    """Fine-tune; return the held-out loss, seconds in training steps, and tokens with padding."""
    model = Model()
    model.load_state_dict(weights)
    order = torch.Generator().manual_seed(seed)
    batches = DataLoader(data["train"], BATCH, shuffle=True, generator=order, collate_fn=collate)
    loader = sb.SelectiveLoader(
        batches,
        model,
        sb.losses.PerExampleLoss(sb.token_cross_entropy, reducer="mean"),
        method,
        pad=PAD,
        num_epochs=math.ceil(epochs),
        seed=seed,
        **options,
    )
    rate = 5e-4
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    tokens = 0
    for _ in range(math.ceil(epochs)):
        for inputs, targets in loader:
            progress = loader.epochs_done / epochs
            if progress >= 1 and epochs != math.ceil(epochs):
                break  # a budget may end within an epoch
            optimizer.param_groups[0]["lr"] = rate * max(0.02, 1 - progress)
            loader.loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            tokens += inputs.numel()
    seconds = loader.stats.seconds["training"]
    return {"loss": held_out_loss(model, data["test"]), "seconds": seconds, "tokens": tokens}


def run_all(path, weights, data, seeds):
    """All runs by name. Seeds are the outer loop, so that runs to be compared are made at about the same time."""
    lines = path.read_text().splitlines() if path.exists() else []
    known = {entry["key"]: entry for entry in map(json.loads, lines)}
    lengths = torch.tensor([len(text) for text in data["train"]])
    runs = {name: [] for name in arms(lengths)}
    for seed in range(seeds):
        for name, (method, options, epochs) in arms(lengths).items():
            key = f"{name}, seed {seed}, {len(data['train'])} texts"
            if key not in known:
                known[key] = {"key": key, **run(weights, data, method, options, epochs, seed)}
                with path.open("a") as file:
                    file.write(json.dumps(known[key]) + "\n")
            runs[name].append(known[key])
    return runs


def report(runs, full):
    """Print the table of runs and their multipliers, and whether the goal is met."""

    def arm(name, cost):
        return Budget(tuple(run["loss"] for run in runs[name]), tuple(run[cost] / full[cost] for run in runs[name]))

    plain = [name for name in runs if name.startswith("plain,")]
    frontiers = {cost: Frontier([arm(name, cost) for name in plain]).budgets for cost in ("tokens", "seconds")}
    print("| | held-out loss | tokens | seconds | multiplier in tokens | in seconds |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    found = {}
    for name in runs:
        by = {cost: arm(name, cost) for cost in frontiers}
        cells = [f"{by['tokens'].error:.4f}", *(f"{by[cost].cost:.2f}" for cost in frontiers)]
        if name not in plain:
            found[name] = {cost: compute_multiplier(frontiers[cost], [by[cost]]) for cost in frontiers}
            cells += [found[name][cost].short() for cost in frontiers]
        print(f"| {name} | {' | '.join([*cells, *[''] * (5 - len(cells))])} |")
    print("\nTokens and seconds are in units of 3 epochs of plain training. Goal: 1.2 times more.")
    with_tokens, without = found["ledger, batches by tokens"], found["ledger"]
    ratios = {cost: with_tokens[cost].multiple.value / without[cost].multiple.value for cost in frontiers}
    shown = ", ".join(f"{ratio:.2f} in {cost}" for cost, ratio in ratios.items())
    print(f"ledger, batches by tokens: {shown}. {'Met.' if min(ratios.values()) >= 1.2 else 'Missed.'}")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", default=str(Path(tempfile.gettempdir()) / "selective-backprop-batch-tokens"))
    parser.add_argument("--steps", type=int, default=500, help="of pre-training")
    parser.add_argument("--examples", type=int, default=240, help="to fine-tune on")
    parser.add_argument("--held-out", type=int, default=160)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {torch.get_num_threads()} thread")
    print(f"command: python benchmarks/batch_tokens.py {' '.join(argv if argv is not None else sys.argv[1:])}")
    before, data = read_text(options.cache)
    state = pre_train(options.cache, before, options.steps)
    print(state["about"])
    chance = random.Random(0)
    for side, count in {"train": options.examples, "test": options.held_out}.items():
        data[side] = chance.sample(data[side], min(count, len(data[side])))
    lengths = [len(text) for text in data["train"]]
    quartiles = statistics.quantiles(lengths, n=4)
    print(
        f"{len(lengths)} texts to fine-tune on, of {min(lengths)} to {max(lengths)} tokens (quartiles "
        f"{', '.join(f'{value:.0f}' for value in quartiles)}); {len(data['test'])} held out; {options.seeds} seeds\n",
        flush=True,
    )
    runs = run_all(Path(options.cache) / "batch-tokens-runs.jsonl", state["model"], data, options.seeds)
    full = {cost: statistics.fmean(run[cost] for run in runs["plain, 3 epochs"]) for cost in ("tokens", "seconds")}
    report(runs, full)


if __name__ == "__main__":
    main()
