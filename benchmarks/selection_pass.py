"""Compare the cost of cheap selection passes with a plain fp32 forward pass in eval mode, within one run.

    python benchmarks/selection_pass.py
    python benchmarks/selection_pass.py --dataset cifar10 --data-dir data --steps 500 --compiled
    python benchmarks/selection_pass.py --dataset cifar10 --data-dir data --candidates 512

1. A ResNet-20 on 32x32 images is trained for some steps. Then it makes a step of 128 after every 384 candidates, as at
   a selectivity of 1/3. Each candidate batch is scored in all ways, in turns. Printed are CPU seconds as ratios to the
   plain forward, with the time that copies need to follow the weights, and the rank correlation of each batch's scores
   with the exact losses. Goal: a quarter of the time, at a rank correlation of 0.9. The plain forward always takes 128
   candidates at a time, with which it was fastest on the CPUs tried.
2. Milliseconds per candidate by size of the candidate batch.
"""

import argparse
import platform
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

import selective_backprop as sb
from selective_backprop.lab.data.augment import Normalise, measure_mean_std
from selective_backprop.lab.data.datasets import load_images
from selective_backprop.lab.models import make_model
from selective_backprop.losses import PerExampleLoss, default_forward
from selective_backprop.scorers import scorer_from
from selective_backprop.scorers.base import fidelity

BATCH = 128
WARM_UP = 4  # batches, on which int8 is calibrated
WAYS = ("eval", "folded", "int8", "half", "half+folded", "half+int8", "0.875+int8")


def images(options):
    """Normalised images and labels: the first ones of a data set, or digits, enlarged and in three channels."""
    if options.dataset:
        data = load_images(options.dataset, data_dir=options.data_dir)
        inputs, labels = data.train_images[: options.examples], data.train_labels[: options.examples].clone()
        return Normalise(*measure_mean_std(data.train_images))(inputs), labels
    from sklearn.datasets import load_digits

    digits = load_digits()
    inputs = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    inputs = F.interpolate(inputs, size=(32, 32), mode="bilinear").expand(-1, 3, -1, -1).contiguous()
    return inputs[: options.examples], torch.tensor(digits.target)[: options.examples]


def training_step(model, images, labels, lr):
    """Make a function that does one step of plain training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    generator = torch.Generator().manual_seed(0)

    def step():
        model.train()
        chosen = torch.randint(len(labels), (BATCH,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()

    return step


def candidates_of(images, labels, size=BATCH):
    parts = zip(images.split(size), labels.split(size), strict=True)
    return [sb.types.Candidates(part, None, size) for part in parts if len(part[1]) == size]


def scorer_of(way):
    """Make a scorer that uses its copy even if that does not pay, because this is what is measured."""
    scorer = scorer_from(way)
    if scorer.model_copy is not None:
        scorer.model_copy.measure = False
    if scorer._audit is not None:
        scorer._audit.every = 10**9  # the check of fidelity costs a plain forward; by default a hundredth of them
    return scorer


def measure(ways, candidates, task, rounds, step=lambda: None, *, split_plain=False):
    """Mean CPU seconds to score a batch, and mean and lowest rank correlation, by way; and the scorers."""
    scorers = {way: scorer_of(way) for way in ways}
    for chosen in candidates[:1] * WARM_UP:
        for scorer in scorers.values():
            scorer.score(chosen, task)
    seconds, faithful = dict.fromkeys(ways, 0.0), {way: [] for way in ways}
    for number in range(rounds):
        chosen, scores = candidates[number % len(candidates)], {}
        for way, scorer in scorers.items():
            parts = candidates_of(*chosen.data) if way == "eval" and split_plain else [chosen]
            began = time.process_time()  # other work on the machine does not count
            scores[way] = torch.cat([scorer.score(part, task) for part in parts])
            seconds[way] += (time.process_time() - began) / rounds
        for way in ways:
            faithful[way].append(fidelity(scores[way], scores["eval"]))
        for _ in range(chosen.size * (number + 1) // (3 * BATCH) - chosen.size * number // (3 * BATCH)):
            step()
    return seconds, {way: (statistics.fmean(found), min(found)) for way, found in faithful.items()}, scorers


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--dataset", help="by name or path; default: scikit-learn's digits, enlarged")
    parser.add_argument("--data-dir")
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--weights", help="a state_dict to start from")
    parser.add_argument("--steps", type=int, default=100, help="training steps before anything is measured")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--candidates", type=int, default=BATCH, help="size of a candidate batch")
    parser.add_argument("--rounds", type=int, default=100, help="number of candidate batches")
    parser.add_argument("--sizes", type=int, nargs="*", default=[128, 256, 512, 1024])
    parser.add_argument("--compiled", action="store_true", help="also measure compiled copies; compiling takes minutes")
    options = parser.parse_args(arguments)
    inputs, labels = images(options)
    model = make_model(options.model, num_classes=10, channels=3, seed=0)
    if options.weights:
        model.load_state_dict(torch.load(options.weights, weights_only=True))
    step = training_step(model, inputs, labels, options.lr)
    for _ in range(options.steps):
        step()
    task = sb.types.Task(model, default_forward, PerExampleLoss(nn.CrossEntropyLoss()))
    size = options.candidates
    candidates = candidates_of(inputs[: 8 * size], labels[: 8 * size], size)

    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads")
    print(f"{options.model} on {options.dataset or 'digits'}, {options.steps} steps of training at {options.lr}")
    ways = (*WAYS, "compiled") if options.compiled else WAYS
    seconds, faithful, scorers = measure(ways, candidates, task, options.rounds, step, split_plain=True)
    print(f"plain forward: {seconds['eval'] * 1e3:.0f} ms for {size} candidates, in parts of {BATCH}\n")
    print("scoring       cost  rank correlation, lowest")
    for way in ways:
        mean, lowest = faithful[way]
        print(f"{way:<12} {seconds[way] / seconds['eval']:.3f}             {mean:.4f}  {lowest:.4f}")
    if options.compiled:
        print(f"making and compiling took {scorers['compiled'].model_copy.seconds:.0f} s")

    print("\nms per candidate, by size of the candidate batch")
    for size in options.sizes:
        parts = candidates_of(inputs[:size], labels[:size], size)
        if parts:
            seconds, *_ = measure(("eval", "folded", "int8"), parts, task, max(3, 15 * BATCH // size))
            print(f"{size:>5}: " + ", ".join(f"{way} {taken / size * 1e3:.2f}" for way, taken in seconds.items()))


if __name__ == "__main__":
    main()
