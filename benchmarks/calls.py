"""Count how many functions and files of the package one batch passes through.

    python benchmarks/calls.py

sys.setprofile counts calls from asking the loader for the next batch to the end of the training step on it. The numbers
are averages over the second epoch: over its training batches if it is planned, else over its candidate batches. Both
methods skip examples there. Only functions of the package count. Wall-clock time plays
no part, so the numbers are the same on every machine.
"""

import itertools
import sys
from collections import Counter
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb

PACKAGE = str(Path(sb.__file__).parent)
METHODS = {"selective_backprop": sb.selective_backprop(1 / 3), "ledger_percentile": sb.methods.ledger_percentile(0.5)}


def count(method, num_examples=4096, batch_size=32, *, by_sampler=False):
    """Calls, functions, files and changes of file per batch of the second epoch.

    by_sampler: let SelectiveSampler hand out the ids to the DataLoader, and tell it the losses.
    """
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(num_examples, 20), torch.randint(5, (num_examples,)))
    model = torch.nn.Linear(20, 5)
    if by_sampler:
        selecting = sb.SelectiveSampler(num_examples, method, num_epochs=2)
        loader = DataLoader(data, batch_size=batch_size, sampler=selecting)
    else:
        train_loader = DataLoader(data, batch_size=batch_size, shuffle=True)
        loader = sb.SelectiveLoader(train_loader, model, torch.nn.CrossEntropyLoss(), method, num_epochs=2)
        selecting = loader

    def loss_of(outputs, targets):
        if not by_sampler:
            return loader.loss(outputs, targets)
        losses = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
        return (losses * selecting.update(losses)).mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    calls, path = Counter(), []

    def profile(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            name = Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()
            calls[name, frame.f_code.co_qualname] += 1
            path.append(name)

    for epoch in range(2):
        before = selecting.stats.copy()
        sys.setprofile(profile if epoch == 1 else None)
        try:
            for inputs, targets in loader:
                loss_of(model(inputs), targets).backward()
                optimizer.step()
                optimizer.zero_grad()
        finally:
            sys.setprofile(None)
    is_planned = selecting.stats.scored == before.scored
    num_batches = selecting.stats.batches - before.batches if is_planned else num_examples / batch_size
    # Leave out functions that run less than once in two batches: an ordinary batch does not meet them.
    usual = {key: number for key, number in calls.items() if number >= num_batches / 2}
    return {
        "calls": sum(usual.values()) / num_batches,
        "functions": len(usual),
        "files": len({name for name, _ in usual}),
        "changes of file": sum(a != b for a, b in itertools.pairwise(path)) / num_batches,
    }


def main():
    print(f"{'per batch':22}{'calls':>8}{'functions':>11}{'files':>7}{'changes of file':>17}")
    counted = {name: count(method) for name, method in METHODS.items()}
    counted["SelectiveSampler"] = count(METHODS["ledger_percentile"], by_sampler=True)
    for name, found in counted.items():
        print(
            f"{name:22}{found['calls']:8.0f}{found['functions']:11}{found['files']:7}{found['changes of file']:17.0f}"
        )


if __name__ == "__main__":
    main()
