"""Compare the lab's speed with that of an earlier commit, in one run.

    python benchmarks/lab_speed.py a2dd5ef

It takes the earlier commit's code out of git into a temporary folder. Both versions train the same networks on random
images in turns, each in a process of its own on one thread: whole runs of several epochs, with the test that a
comparison needs (the earlier version tests after every epoch, this one after the last). It prints examples per second
of processor time, and how far the final weights are apart.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

WORKLOADS = (("small_resnet", 14, 1), ("small_resnet", 16, 3), ("resnet20", 16, 3))
CHILD = """
import inspect, json, sys, time
import torch
from selective_backprop_lab.data.datasets import ImageSet
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.runs.training import Settings, Training
torch.set_num_threads(1)
model, size, channels, examples, epochs = json.loads(sys.argv[1])
draw = torch.Generator().manual_seed(0)
images = torch.randint(256, (examples + examples // 4, channels, size, size), dtype=torch.uint8, generator=draw)
labels = torch.arange(len(images)) % 10
parts = images[:examples], labels[:examples], images[examples:], labels[examples:]
data = ImageSet("random", *parts, tuple(map(str, range(10))))
recipe = find_recipe("svhn_small").with_(model=model, epochs=epochs)
settings = Settings(recipe=recipe, method="traditional", selectivity=1.0, seed=0)
last_only = "test_every_epoch" in inspect.signature(Training.__init__).parameters
training = Training(settings, data, torch.device("cpu"), **({"test_every_epoch": False} if last_only else {}))
began = time.process_time()
while len(training.records) < epochs:
    training.epoch()
spent = time.process_time() - began
weights = torch.cat([weight.detach().flatten() for weight in training.model.parameters()])
print(json.dumps([examples * epochs / spent, weights.tolist()]))
"""


def examples_per_second(source, workload):
    """Run a version of the code in a process of its own."""
    command = [sys.executable, "-c", CHILD, json.dumps(workload)]
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="the earlier commit")
    parser.add_argument("--examples", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    archive = subprocess.run(["git", "-C", root, "archive", options.before, "src"], check=True, capture_output=True)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        sources = {"before": Path(folder) / "src", "now": root / "src"}
        for model, size, channels in WORKLOADS:
            speeds, weights = {name: [] for name in sources}, {}
            for number in range(options.rounds):
                for name in sorted(sources, reverse=number % 2 == 1):
                    workload = [model, size, channels, options.examples, options.epochs]
                    speed, weights[name] = examples_per_second(sources[name], workload)
                    speeds[name].append(speed)
            ratio = statistics.median(now / before for before, now in zip(speeds["before"], speeds["now"], strict=True))
            apart = max(abs(a - b) for a, b in zip(weights["before"], weights["now"], strict=True))
            before, now = (statistics.median(speeds[name]) for name in ("before", "now"))
            print(
                f"{model} at {size}x{size}x{channels}: {before:,.0f} examples/s before, {now:,.0f} now, "
                f"{ratio:.2f}x (goal: 1.5x); weights at most {apart:.1e} apart",
                flush=True,
            )


if __name__ == "__main__":
    main()
