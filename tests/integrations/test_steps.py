"""Batches of whole optimizer steps: nothing lost, no step cut short, the trainer's count never exceeded."""

import pytest
import torch

import selective_backprop as sb
from selective_backprop.integrations.steps import OptimizerSteps, split
from selective_backprop.types import Batch
from tests.helpers import make_loader

EPOCH = 13  # batches of 16 among 203 digits


def run(method, accumulation, epochs=5):
    """As Trainer asks for batches; sizes of every step by epoch."""
    steps = OptimizerSteps(make_loader(method, num_epochs=epochs))
    found = []
    while not steps.run_over and len(found) < epochs:
        asked = [min(accumulation, EPOCH - first) for first in range(0, EPOCH, accumulation)]
        given = [[len(batch) for batch in steps.take(count, EPOCH)] for count in asked]
        found.append(
            ([step for step in given if step], [count for step, count in zip(given, asked, strict=True) if step])
        )
        steps.end_epoch()
    return steps.loader, found


@pytest.mark.parametrize("accumulation", [1, 2, 4, 5])
@pytest.mark.parametrize("selectivity", [0.02, 0.3, 0.95, 1.0])
def test_whole_steps(accumulation, selectivity):
    loader, epochs = run(sb.selective_backprop(selectivity), accumulation)
    steps = [step for given, _ in epochs for step in given]
    total = sum(map(sum, steps))
    assert loader.stats.trained - accumulation * 16 < total <= loader.stats.trained
    for given, asked in epochs:
        assert sum(map(len, given)) <= EPOCH
        ends = len(given) * accumulation >= EPOCH  # the trainer ends a short step by itself there
        for number, (step, count) in enumerate(zip(given, asked, strict=True)):
            assert len(step) == count or (ends and number == len(given) - 1)
    if selectivity == 1:
        assert all(sum(map(sum, given)) == 203 for given, _ in epochs)


def test_split():
    def batch(rows):
        ids = torch.arange(rows)
        return Batch({"x": ids.float()}, ids, torch.ones(rows), torch.ones(rows, dtype=torch.float64))

    parts = split([batch(8), batch(3)], 4)
    assert [len(part) for part in parts] == [2, 2, 4, 3]
    assert torch.cat([part.data["x"] for part in parts]).tolist() == [*range(8), *range(3)]
    assert split([batch(2)], 3) == []
