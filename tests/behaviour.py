"""Record what every method does, and compare a changed library with that recording.

    python -m tests.behaviour record FILE [--only TEXT]
    python -m tests.behaviour compare FILE [--only TEXT]

A change of structure must not change results. Record at the commit before it, compare after it, on the same machine:
processors round differently. For every method, at three seeds, with and without workers, on one rank and on two, the
recording has SHA-256 digests of the ids and weights of every batch, of the final parameters, and of the same run
stopped in the middle and resumed. It takes about three minutes on one core.
"""

import argparse
import hashlib
import io
import json
import sys
import tempfile
from pathlib import Path

import torch

from tests.contracts.methods import METHODS
from tests.distributed.launch import run as run_on_ranks
from tests.helpers import Noisy, digits, make_loader, make_model, train

SEEDS = (0, 1, 2)
EPOCHS = 4
SELECTIVITY = 0.4


def digest(*values):
    """SHA-256 of lists, numbers and tensors, to the bit."""
    found = hashlib.sha256()
    for value in values:
        found.update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else json.dumps(value).encode())
    return found.hexdigest()[:16]


def parameters(model):
    return torch.cat([value.detach().double().flatten() for value in model.state_dict().values()])


def make_run(name, seed, workers, epochs):
    """A model, its optimizer and its loader. Data is augmented where no worker does it: a worker draws by itself."""
    torch.manual_seed(seed)
    model = make_model(seed)
    loader = make_loader(
        METHODS[name](SELECTIVITY),
        dataset=digits() if workers else Noisy(),
        model=model,
        num_epochs=epochs,
        seed=seed,
        loader_options={"num_workers": workers, "generator": torch.Generator().manual_seed(seed)},
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), loader


def save(model, optimizer, loader):
    file = io.BytesIO()
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    torch.save(states | {"rng": torch.get_rng_state()}, file)
    return file


def record_run(name, seed, workers):
    """One process: the whole run, and the same run resumed from the state saved after its 7th step."""
    epochs = 2 if workers else EPOCHS
    model, optimizer, loader = make_run(name, seed, workers, epochs)
    weights, saved = [], []

    def on_step(step, optimizer):
        weights.append(loader.batch.weights.tolist())
        if step == 7:
            saved.append(save(model, optimizer, loader))

    batches = train(loader, model, epochs, optimizer=optimizer, on_step=on_step)
    result = {"batches": digest(batches), "weights": digest(weights), "parameters": digest(parameters(model))}
    if not saved:
        return result
    model, optimizer, loader = make_run(name, seed, workers, epochs)
    saved[0].seek(0)
    states = torch.load(saved[0], weights_only=True)
    model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    loader.load_state_dict(states["loader"])
    torch.set_rng_state(states["rng"])
    rest = train(loader, model, epochs, optimizer=optimizer)
    return result | {"resumed": digest(rest, parameters(model))}


def record(only=""):
    """Everything, as {"method, seed, workers, ranks": digests}."""
    torch.set_num_threads(1)
    found = {}
    names = [name for name in METHODS if only in name]
    for name in names:
        for seed in SEEDS:
            found[f"{name} | seed {seed}"] = record_run(name, seed, workers=0)
        found[f"{name} | seed 0, workers"] = record_run(name, 0, workers=2)
        print(name, file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            for rank, results in enumerate(run_on_ranks("behaviour:job", Path(folder), 2, str(seed), only)):
                found |= {f"{name} | seed {seed}, rank {rank} of 2": value for name, value in results.items()}
    return found


def differences(before, after):
    """A line for every run that is not the same."""
    for name in sorted(before.keys() | after.keys()):
        if name not in after or name not in before:
            yield f"{name}: {'not there any more' if name in before else 'new'}"
        elif before[name] != after[name]:
            changed = [key for key in before[name] if before[name][key] != after[name].get(key)]
            yield f"{name}: other {', '.join(changed)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="methods whose name has this text")
    options = parser.parse_args()
    found = record(options.only)
    if options.action == "record":
        options.file.write_text(json.dumps(found, indent=1) + "\n")
        print(f"recorded {len(found)} runs in {options.file}")
        return
    before = {name: value for name, value in json.loads(options.file.read_text()).items() if options.only in name}
    changed = list(differences(before, found))
    print(*changed, f"{len(before)} runs compared, {len(changed)} differ", sep="\n")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
