"""Measure what audit=True adds to a training step, as a share of the step.

    python benchmarks/recording.py

The cost of recording is timed by itself, on the outputs of real steps, in between those steps. One thread. It prints
the median of all steps.
"""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import nn

import selective_backprop as sb
from selective_backprop.loader.recording import Recorder
from selective_backprop_lab.models import make_model

SETTINGS = {
    "resnet20, 10 classes": ("resnet20", 10, 128, 32),
    "small_resnet, 1000 classes": ("small_resnet", 1000, 64, 32),
}


def measure(name: str, classes: int, batch: int, size: int, steps: int = 8) -> tuple[float, float]:
    """Return the median seconds of a step and of its recording."""
    model = make_model(name, num_classes=classes, channels=3, seed=0).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(batch, 3, size, size, generator=generator), torch.arange(batch) % classes
    recorder, given = Recorder(50_000), sb.types.Batch(None, torch.arange(batch), torch.ones(batch), torch.ones(batch))
    trained, recorded = [], []
    for epoch in range(steps + 2):
        start = time.perf_counter()
        outputs = model(images)
        losses = nn.functional.cross_entropy(outputs, labels, reduction="none")
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        middle = time.perf_counter()
        recorder.add(given, outputs, labels, losses, epoch)
        trained.append(middle - start)
        recorded.append(time.perf_counter() - middle)
    return median(trained[2:]), median(recorded[2:])


def main() -> None:
    torch.set_num_threads(1)
    for title, setting in SETTINGS.items():
        step, recording = measure(*setting)
        print(
            f"{title}, batch {setting[2]}: step {1e3 * step:.1f} ms, recording {1e3 * recording:.3f} ms, "
            f"{recording / step:.2%}"
        )


if __name__ == "__main__":
    main()
