"""Does skipping hurt rare classes? See results/rare-classes/PROTOCOL.md.

python benchmarks/rare_classes.py DATA RUNS.jsonl            runs what is missing
python benchmarks/rare_classes.py DATA RUNS.jsonl --table    trains nothing

DATA holds fashion_mnist/train.parquet and test.parquet in the columns of the Hugging Face Hub.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from selective_backprop_lab.data.datasets import load_images

RARE = {6: "Shirt", 9: "Ankle boot"}
SEEDS, EPOCHS, BATCH = range(5), 15, 64
ARMS = ("plain", "ledger", "ledger, classes", "plain, shorter")


def long_tailed(images, labels, common=2000, rare=100):
    """The first images of each class, fewer of the rare ones."""
    kept = [(labels == c).nonzero().flatten()[: rare if c in RARE else common] for c in range(10)]
    kept = torch.cat(kept).sort().values
    return images[kept], labels[kept]


def network():
    """Three strided convolutions and a linear layer."""
    layers, channels = [], 1
    for wide in (16, 32, 64):
        layers += [nn.Conv2d(channels, wide, 3, 2, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
        channels = wide
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, 10))


def method_of(arm, labels):
    if arm == "ledger":
        return sb.ledger_backprop()
    return sb.ledger_backprop(classes=labels) if arm == "ledger, classes" else sb.methods.traditional()


def train(arm, seed, epochs, train_set, test_set):
    """One run. Returns what PROTOCOL.md reports."""
    images, labels = train_set
    torch.manual_seed(seed)
    model, loss_fn = network(), nn.CrossEntropyLoss()
    data = DataLoader(TensorDataset(images, labels), batch_size=BATCH, shuffle=True)
    loader = sb.SelectiveLoader(data, model, loss_fn, method_of(arm, labels), num_epochs=epochs, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    steps = epochs * len(data)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    trained = torch.zeros(10)
    for _ in range(epochs):
        model.train()
        for inputs, targets in loader:
            trained += targets.bincount(minlength=10)
            flips = torch.rand(len(inputs), 1, 1, 1) < 0.5
            loss = loader.loss(model(torch.where(flips, inputs.flip(3), inputs)), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sb.step_by_progress(scheduler, loader, steps)
    recalls = recall(model, *test_set)
    shares = trained / (epochs * labels.bincount(minlength=10))
    others = [recalls[c] for c in range(10) if c not in RARE]
    return {
        "arm": arm,
        "seed": seed,
        "epochs": epochs,
        "recall": {name: recalls[c] for c, name in RARE.items()} | {"others": statistics.mean(others)},
        "error": 1 - statistics.mean(recalls),
        "trained": {"all": float(trained.sum() / (epochs * len(labels)))} | {RARE[c]: float(shares[c]) for c in RARE},
    }


def recall(model, images, labels):
    """Recall of each class."""
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in images.split(500)])
    return [float((found[labels == c] == c).float().mean()) for c in range(10)]


def rows(runs):
    """The table of the results, in per cent."""
    plain = {run["seed"]: run for run in runs if run["arm"] == "plain"}
    yield ("arm", "Shirt", "Ankle boot", "the other eight", "error", "trained on: all", "Shirt", "Ankle boot")
    for arm in ARMS:
        mine = [run for run in runs if run["arm"] == arm]
        cells = [arm]
        for name in (*RARE.values(), "others"):
            cells.append(_cell([(run["recall"][name], plain[run["seed"]]["recall"][name]) for run in mine], arm))
        cells.append(_cell([(run["error"], plain[run["seed"]]["error"]) for run in mine], arm))
        cells += [f"{100 * statistics.mean(run['trained'][k] for run in mine):.0f}" for k in ("all", *RARE.values())]
        yield tuple(cells)


def _cell(pairs, arm):
    values = [100 * value for value, _ in pairs]
    text = f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
    if arm == "plain":
        return text
    gaps = [100 * (value - other) for value, other in pairs]
    return f"{text} ({statistics.mean(gaps):+.1f} ± {statistics.stdev(gaps) / len(gaps) ** 0.5:.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    runs = [json.loads(line) for line in arguments.runs.read_text().splitlines()] if arguments.runs.exists() else []
    if not arguments.table:
        torch.set_num_threads(1)
        found = load_images("fashion_mnist", data_dir=arguments.data)
        train_set = long_tailed(found.train_images.float() / 127.5 - 1, found.train_labels)
        test_set = found.test_images.float() / 127.5 - 1, found.test_labels
        for seed in SEEDS:
            for arm in ARMS:
                if any((run["arm"], run["seed"]) == (arm, seed) for run in runs):
                    continue
                ledger = next((run for run in runs if (run["arm"], run["seed"]) == ("ledger", seed)), None)
                epochs = round(EPOCHS * ledger["trained"]["all"]) if arm == "plain, shorter" else EPOCHS
                runs.append(train(arm, seed, epochs, train_set, test_set))
                with arguments.runs.open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
                print(runs[-1], flush=True)
    for row in rows(runs):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
