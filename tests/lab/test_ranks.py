"""The command line on two ranks, as torchrun starts it, on digits and a small network."""

import json
import os
import signal
import time
from statistics import fmean

import pytest
import torch

from selective_backprop.lab.ledger_log import read_ledger_log
from selective_backprop.lab.probes import read_confidence, read_examples, read_gradients
from selective_backprop.lab.ranks import Share, collect, from_first, hand_out, in_turn, own_part, total
from selective_backprop.testing import same
from tests.lab.command_line import (
    records,
    run,
    run_on_ranks,
    start_on_ranks,
    text_of,
    without_seconds,
    workers_of,
)

SB = ("train", "--epochs", 8, "--method", "sb", "--option", "warmup_epochs=1", "--option", "padding=1", "--out")


def model_of(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks") / "undisturbed"
    result = run_on_ranks(*SB, folder, "--probe", "gradients,confidence,examples", "--probe-at", "0,7")
    assert result.returncode == 0, text_of(result)
    return folder, result


def test_a_process_alone_does_all_by_itself():
    assert from_first(lambda: (1, "a")) == in_turn(lambda: (1, "a")) == (1, "a")
    assert collect({"a": 1}) == [{"a": 1}] and hand_out([{"a": 1}]) == {"a": 1}
    assert total([1, 2.5]) == [1.0, 2.5] and own_part(7) == slice(0, 7)
    assert list(Share(range(5))) == [0, 1, 2, 3, 4]


def test_the_folder_is_that_of_one_process(undisturbed):
    folder, _ = undisturbed
    config = json.loads((folder / "config.json").read_text())
    assert (config["ranks"], config["recipe"]["batch_size"]) == (2, 32)
    written = records(folder)
    assert [record["epoch"] for record in written] == list(range(8))
    assert all(record["offered"] == 1437 for record in written), "no example is repeated or left out"
    assert [record["scored"] for record in written[1:]] == [1437] * 7
    assert written[0]["trained"] == 1436 and written[0]["batches"] == 45, "of 1437, one has no counterpart"
    assert all(record["trained"] == 32 * record["batches"] for record in written[1:-1])
    for record in written:
        assert record["compute"] == pytest.approx((record["scored"] + 3 * record["trained"]) / 3 / 1437)
    assert written[-1]["lr"] == pytest.approx(0, abs=1e-9)
    assert read_confidence(folder).confidence.shape == (2, 360)
    assert {row.epoch for row in read_gradients(folder)} == {0, 7}
    assert {row.epoch for row in read_examples(folder)} == set(range(8))


def test_the_ledger_is_that_of_all_ranks(undisturbed):
    folder, _ = undisturbed
    history = read_ledger_log(folder)
    assert history.loss.shape == (8, 1437)
    assert (history.selected[0] == 1).all()
    trained = sum(record["trained"] for record in records(folder))
    assert 0 <= int(history.selected.sum()) - trained <= 3, "all but what did not fill a batch on each rank"


def test_rank_0_alone_prints(undisturbed):
    _, result = undisturbed
    lines = [line for line in result.stdout.splitlines() if "examples/s" in line]
    assert [line.split("  ")[0] for line in lines] == [f"selective_backprop: epoch {i}/8" for i in range(1, 9)]
    assert text_of(result).count("test error") == 1


def test_killed_and_resumed_equals_undisturbed(undisturbed, tmp_path):
    with start_on_ranks("-m", "selective_backprop.lab", *SB, tmp_path) as process:
        while not (tmp_path / "checkpoint.pt").exists():
            assert process.poll() is None
            time.sleep(0.01)
        for pid in [process.pid, *workers_of(process)]:
            os.kill(pid, signal.SIGKILL)
        process.communicate()
    assert len(records(tmp_path)) < 8
    other = run(*SB, tmp_path, "--resume")
    assert other.returncode == 2
    assert "holds a run of 2 ranks, and here are 1: go on with it by torchrun --nproc-per-node 2" in text_of(other)
    result = run_on_ranks(*SB, tmp_path, "--resume")
    assert result.returncode == 0, text_of(result)
    folder, _ = undisturbed
    assert without_seconds(tmp_path) == without_seconds(folder)
    assert same(model_of(tmp_path), model_of(folder))
    logs = [read_ledger_log(path).selected for path in (tmp_path, folder)]
    assert (logs[0] == logs[1]).all()


PLAIN = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from selective_backprop.lab.augment import Augment, Normalise, measure_mean_std
from selective_backprop.lab.datasets import load_images
from selective_backprop.lab.models import make_model
from selective_backprop.lab.recipes import find_recipe

dist.init_process_group("gloo")
rank, seed, epochs, batch, steps = dist.get_rank(), 3, 2, 16, 45
data, recipe = load_images("digits"), find_recipe("digits")
model = make_model("small_cnn", num_classes=10, channels=1, seed=seed).to(memory_format=torch.channels_last)
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), recipe.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
normalise = Normalise(*measure_mean_std(data.train_images))
augment = Augment(padding=1, flip=False, seed=2 * seed + rank)
generator = torch.Generator().manual_seed(seed)
order = torch.utils.data.RandomSampler(data.train_labels, generator=generator)
for epoch in range(epochs):
    torch.empty((), dtype=torch.int64).random_(generator=generator)  # what a DataLoader draws for its workers
    ids = torch.tensor(list(order))[rank::2]
    for step, part in enumerate(ids.split(batch), start=1):
        images, labels = augment(normalise(data.train_images[part])), data.train_labels[part]
        fewest = 14 if step == steps else batch  # 718 and 719 examples
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr_at((epoch + step / steps) / epochs)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images[:fewest]), labels[:fewest]).backward()
        optimizer.step()
if rank == 0:
    torch.save(model.state_dict(), sys.argv[1])
dist.destroy_process_group()
"""


@pytest.mark.parametrize("method", [("traditional",), ("sb", "--selectivity", 1)])
def test_keeping_everything_is_plain_ddp_to_the_bit(method, tmp_path):
    command = ("--method", *method, "--epochs", 2, "--seed", 3, "--option", "padding=1", "--out", tmp_path / "run")
    result = run_on_ranks("train", *command)
    assert result.returncode == 0, text_of(result)
    (tmp_path / "plain.py").write_text(PLAIN)
    with start_on_ranks(tmp_path / "plain.py", tmp_path / "plain.pt") as process:
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert same(model_of(tmp_path / "run"), torch.load(tmp_path / "plain.pt", weights_only=True))
