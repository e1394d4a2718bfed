"""Compare the lab's Traditional training with a bare PyTorch loop, as a ratio within one run.

    python benchmarks/lab_overhead.py
    python benchmarks/lab_overhead.py --dataset cifar10 --data-dir data --batches 390

1. Speed of lab.training.Training.epoch, without its evaluation, against the loop that one would write by hand: same
   model, batches, order, augmentation, optimizer and learning rates, so that both end with the same weights. Goal: the
   lab takes at most 1.03 times as long.
2. Batches per second that loading and augmentation alone deliver, against those that the training step consumes.
"""

import argparse
import dataclasses
import platform
import statistics
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

from selective_backprop_lab.data.augment import Augment, Normalise, measure_mean_std
from selective_backprop_lab.data.datasets import ImageDataset, ImageSet, load_images
from selective_backprop_lab.models import make_model
from selective_backprop_lab.runs.recipes import find_recipe
from selective_backprop_lab.runs.training import Settings, Training, make_optimizer

CPU, SEED = torch.device("cpu"), 0


def random_images(size):
    """Random images of CIFAR-10's shape. The pixels do not matter for the speed."""
    images = torch.randint(256, (size, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(size) % 10
    return ImageSet("random", images, labels, images[:10], labels[:10], tuple(map(str, range(10))))


def first_part(data, size):
    """The first images, copied into memory. Only a few are for testing, which is not measured."""
    train, test = data.train_images[:size].clone(), data.test_images[:10].clone()
    return dataclasses.replace(
        data,
        train_images=train,
        train_labels=data.train_labels[: len(train)].clone(),
        test_images=test,
        test_labels=data.test_labels[: len(test)].clone(),
    )


class Lab:
    def __init__(self, recipe, data):
        settings = Settings(recipe=recipe, method="traditional", selectivity=1.0, seed=SEED)
        self.training = Training(settings, data, CPU, test_every_epoch=False)
        self.model = self.training.model

    def epoch(self):
        """Train for an epoch without its test; return its seconds of processor time."""
        start = time.process_time()
        self.training.epoch()
        return time.process_time() - start


class Bare:
    def __init__(self, recipe, data):
        self.recipe, self.steps = recipe, 0
        model = make_model(recipe.model, num_classes=data.num_classes, channels=data.image_shape[0], seed=SEED)
        self.model = model.to(memory_format=torch.channels_last)
        self.normalise = Normalise(*measure_mean_std(data.train_images))
        self.augment = Augment(padding=recipe.padding, flip=recipe.flip, cutout=recipe.cutout, seed=SEED)
        dataset = ImageDataset(data.train_images, data.train_labels)
        generator = torch.Generator().manual_seed(SEED)
        self.loader = DataLoader(
            dataset, recipe.batch_size, shuffle=True, generator=generator, collate_fn=dataset.collate, drop_last=True
        )
        self.total_steps = recipe.epochs * len(self.loader)
        self.optimizer = make_optimizer(recipe, self.model.parameters(), CPU)
        self.loss_fn = nn.CrossEntropyLoss()

    def batches(self):
        for images, labels in self.loader:
            yield self.augment(self.normalise(images)), labels

    def step(self, images, labels):
        self.steps += 1
        self.optimizer.param_groups[0]["lr"] = self.recipe.lr_at(self.steps / self.total_steps)
        loss = self.loss_fn(self.model(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def epoch(self):
        start = time.process_time()
        self.model.train()
        for images, labels in self.batches():
            self.step(images, labels)
        return time.process_time() - start


def compare(recipe, data, rounds):
    """Processor time per epoch of both, round by round. They take turns in going first, so that drift affects both."""
    subjects = {"lab": Lab(recipe, data), "bare": Bare(recipe, data)}
    seconds = {name: [] for name in subjects}
    for number in range(rounds + 1):
        for name in sorted(subjects, reverse=number % 2 == 1):
            spent = subjects[name].epoch()
            if number:  # the first round warms up
                seconds[name].append(spent)
    return subjects, seconds


def feeding(bare, rounds):
    """Median batches per second that loading and augmentation deliver, and that the training step takes."""
    delivered, taken = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        batches = list(bare.batches())
        loaded = time.perf_counter()
        for images, labels in batches:
            bare.step(images, labels)
        taken.append(len(batches) / (time.perf_counter() - loaded))
        delivered.append(len(batches) / (loaded - start))
    return statistics.median(delivered), statistics.median(taken)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar10")
    parser.add_argument("--model", default="resnet20", help="a fast one shows the overhead best")
    parser.add_argument("--dataset", help="by name or path; default: random images of CIFAR-10's shape")
    parser.add_argument("--data-dir")
    parser.add_argument("--batches", type=int, default=40, help="batches per epoch")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = find_recipe(options.recipe).with_(model=options.model, epochs=2 * options.rounds + 1)
    size = options.batches * recipe.batch_size
    loaded = load_images(options.dataset, data_dir=options.data_dir) if options.dataset else random_images(size)
    data = first_part(loaded, size)

    print(f"torch {torch.__version__}, Python {platform.python_version()}, {options.threads} threads")
    print(f"{options.model} on {len(data.train_labels):,} images of {data.name}, batch {recipe.batch_size}")
    subjects, seconds = compare(recipe, data, options.rounds)
    for name, spent in seconds.items():
        print(f"{name:<6}{len(data.train_labels) / statistics.median(spent):10,.0f} examples/s")
    ratios = [lab / bare for lab, bare in zip(seconds["lab"], seconds["bare"], strict=True)]
    print(
        f"lab / bare: {statistics.median(ratios):.3f} (median of {len(ratios)} rounds, {min(ratios):.3f} to "
        f"{max(ratios):.3f}; goal: at most 1.03)"
    )
    weights = [subject.model.state_dict().values() for subject in subjects.values()]
    same = all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    print("both ended with the same weights" if same else "NOT the same weights: this compares different things")
    delivered, taken = feeding(subjects["bare"], options.rounds)
    print(
        f"loading and augmentation deliver {delivered:,.0f} batches/s, the training step takes {taken:,.1f}: "
        f"{delivered / taken:.0f} times what is needed, {1 / (1 + delivered / taken):.1%} of the time"
    )


if __name__ == "__main__":
    main()
