"""The command line on two ranks, as torchrun starts it, on digits and a small network."""

import json
import signal
import time
from statistics import fmean

import pytest
import torch
from typer.testing import CliRunner

from selective_backprop.lab.cli import app
from selective_backprop.lab.probes import read_confidence, read_examples, read_gradients
from selective_backprop.lab.runs.ledger_log import read_ledger_log
from selective_backprop.lab.runs.ranks import Share, from_first, in_turn, own_part, total
from selective_backprop.lab.runs.recipes import find_recipe
from selective_backprop.lab.runs.training import Settings
from selective_backprop.testing import same
from tests.lab.command_line import (
    Ranks,
    records,
    run,
    run_on_ranks,
    start_torchrun,
    text_of,
    without_seconds,
)

EPOCHS = 4
SB = ("train", "--epochs", EPOCHS, "--method", "sb", "--option", "warmup_epochs=1", "--option", "padding=1", "--out")


def model_of(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks") / "undisturbed"
    result = run_on_ranks(*SB, folder, "--probe", "gradients,confidence,examples")
    assert result.returncode == 0, text_of(result)
    return folder, result


def test_a_process_alone_does_all_by_itself():
    assert from_first(lambda: (1, "a")) == in_turn(lambda: (1, "a")) == (1, "a")
    assert total([1, 2.5]) == [1.0, 2.5] and own_part(7) == slice(0, 7)
    settings = Settings(recipe=find_recipe("digits"), method="traditional", selectivity=1.0)
    assert settings.ranks == 1


def test_ranks_share_the_order_of_one_process_and_the_test_set(monkeypatch):
    def on(rank, size):
        monkeypatch.setattr("selective_backprop.lab.runs.ranks.place", lambda: (rank, size))
        share = Share(range(100, 111))
        assert len(list(share)) == len(share)
        return list(share), own_part(11)

    assert on(0, 3) == ([100, 103, 106], slice(0, 3))
    assert on(1, 3) == ([101, 104, 107], slice(3, 7))
    assert on(2, 3) == ([102, 105, 108], slice(7, 11))


@pytest.mark.parametrize("command", ["demo", "list", "advise", "diet", "report"])
def test_what_works_in_one_process_says_so(command, monkeypatch):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0")):  # as torchrun sets them
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, [command])
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert f"{command} runs in one process: start it without torchrun" in said


def test_the_folder_is_that_of_one_process(undisturbed):
    folder, _ = undisturbed
    config = json.loads((folder / "config.json").read_text())
    assert (config["ranks"], config["recipe"]["batch_size"]) == (2, 32)
    written = records(folder)
    assert [record["epoch"] for record in written] == list(range(EPOCHS))
    assert all(record["offered"] == 1408 for record in written), "44 full batches of 16 each"
    for record in written[1:]:  # all but those that wait when the epoch begins, fewer than 16 on one of the two ranks
        assert 1408 - 3 * 16 <= record["scored"] == 1408 - record["skipped_before_loading"]
    assert written[0]["trained"] == 1408 and written[0]["batches"] == 44
    assert all(record["trained"] == 32 * record["batches"] for record in written[1:-1])
    for record in written:
        assert record["compute"] == pytest.approx((record["scored"] + 3 * record["trained"]) / 3 / 1437)
    assert written[-1]["lr"] == pytest.approx(0, abs=1e-9)
    assert read_confidence(folder).confidence.shape == (3, 360)
    assert {row.epoch for row in read_gradients(folder)} == {0, EPOCHS // 2, EPOCHS - 1}
    assert {row.epoch for row in read_examples(folder)} == set(range(EPOCHS))


def test_the_ledger_is_that_of_all_ranks(undisturbed):
    folder, _ = undisturbed
    history = read_ledger_log(folder)
    assert history.loss.shape == (EPOCHS, 1437)
    assert sorted(history.selected[0].tolist()) == [0] * 29 + [1] * 1408
    trained = sum(record["trained"] for record in records(folder))
    assert 0 <= int(history.selected.sum()) - trained <= 3, "all but what did not fill a batch on each rank"


def test_rank_0_alone_prints(undisturbed):
    _, result = undisturbed
    lines = [line for line in result.stderr.splitlines() if "examples/s" in line]
    assert [line.split("  ")[0] for line in lines] == [
        f"selective_backprop: epoch {i}/{EPOCHS}" for i in range(1, EPOCHS + 1)
    ]
    assert text_of(result).count("test error") == 1


def test_killed_and_resumed_equals_undisturbed(undisturbed, tmp_path):
    ranks = Ranks(*SB, tmp_path)
    while not (tmp_path / "checkpoint.pt").exists():
        assert ranks.poll() is None
        time.sleep(0.01)
    ranks.kill()
    assert ranks.finish().returncode == -signal.SIGKILL
    assert len(records(tmp_path)) < EPOCHS
    other = run(*SB, tmp_path, "--resume")
    assert other.returncode == 2
    assert "holds a run of 2 ranks, but this one has 1: continue it with torchrun --nproc-per-node 2" in text_of(other)
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
from selective_backprop.lab.data.augment import Augment, Normalise, measure_mean_std
from selective_backprop.lab.data.datasets import load_images
from selective_backprop.lab.models import make_model
from selective_backprop.lab.runs.recipes import find_recipe

dist.init_process_group("gloo")
rank, seed, epochs, batch, steps = dist.get_rank(), 0, 4, 16, 44
data, recipe = load_images("digits"), find_recipe("digits")
model = make_model("small_cnn", num_classes=10, channels=1, seed=seed).to(memory_format=torch.channels_last)
ddp = nn.parallel.DistributedDataParallel(model)
momentum = {"momentum": 0.9, "nesterov": True}
optimizer = torch.optim.SGD(model.parameters(), recipe.lr, **momentum, weight_decay=5e-4, fused=True)
normalise = Normalise(*measure_mean_std(data.train_images))
augment = Augment(padding=1, flip=False, seed=2 * seed + rank)
generator = torch.Generator().manual_seed(seed)
order = torch.utils.data.RandomSampler(data.train_labels, generator=generator)
for epoch in range(epochs):
    torch.empty((), dtype=torch.int64).random_(generator=generator)  # what a DataLoader draws for its workers
    ids = torch.tensor(list(order))[: 2 * batch * steps][rank::2]  # full batches only
    for step, part in enumerate(ids.split(batch), start=1):
        images, labels = augment(normalise(data.train_images[part])), data.train_labels[part]
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr_at((epoch + step / steps) / epochs)
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()
if rank == 0:
    torch.save(model.state_dict(), sys.argv[1])
dist.destroy_process_group()
"""


SEEDS = 2
COMPARE = (
    *("compare", "--no-baselines", "--epochs", 4, "--seeds", SEEDS, "--method", "selective_backprop@1:padding=1"),
    *("--method", "sb:warmup_epochs=1,history_size=512,padding=1", "--out"),
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare")
    result = run_on_ranks(*COMPARE, out)
    assert result.returncode == 0, text_of(result)
    return out, result


def test_keeping_everything_is_plain_ddp_to_the_bit(compared, tmp_path):
    (tmp_path / "plain.py").write_text(PLAIN)
    result = run_on_ranks(tmp_path / "plain.py", tmp_path / "plain.pt", script=True)
    assert result.returncode == 0, result.stderr
    plain, (out, _) = torch.load(tmp_path / "plain.pt", weights_only=True), compared
    assert same(model_of(out / "selective_backprop/seed-0"), plain)


def test_compare_prints_once_and_does_only_what_is_missing(compared):
    out, result = compared
    lines = [line for line in result.stderr.splitlines() if "examples/s" in line]
    assert len(lines) == 2 * SEEDS * 4, "a line per epoch"
    assert result.stdout.count("report:") == 1
    assert (out / "tables.md").exists() and (out / "report.html").exists()
    checkpoints = {path: path.stat().st_mtime_ns for path in out.rglob("checkpoint.pt")}
    assert len(checkpoints) == 2 * SEEDS
    again = run_on_ranks(*COMPARE, out)
    assert again.returncode == 0, text_of(again)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("checkpoint.pt")} == checkpoints
    assert again.stdout.split("Compute multipliers")[1] == result.stdout.split("Compute multipliers")[1]


def test_one_rank_and_two_are_statistically_the_same(compared, tmp_path):
    result = run(*COMPARE, tmp_path)
    assert result.returncode == 0, text_of(result)
    for label in ("selective_backprop", "sb"):
        found = [[records(out / label / f"seed-{seed}") for seed in range(SEEDS)] for out in (tmp_path, compared[0])]
        errors = [fmean(run[-1]["test_error"] for run in runs) for runs in found]
        # Of 2 x 360 test examples at 2% error, two standard deviations of the difference are 0.015.
        assert abs(errors[0] - errors[1]) < 0.02 and max(errors) < 0.06, (label, errors)
        shares = [
            fmean(sum(r["trained"] for r in run[1:]) / sum(r["offered"] for r in run[1:]) for run in runs)
            for runs in found
        ]
        # Selected one by one at about 1/3: of 2 x 4300 candidates, three standard deviations are 0.022.
        assert shares[0] == pytest.approx(shares[1], abs=0.025), label


def test_a_batch_that_ranks_cannot_share_is_told_once(tmp_path):
    result = run_on_ranks("train", "--option", "batch_size=33", "--out", tmp_path / "run")
    assert result.returncode == 2
    said = text_of(result)
    told = "the batch of 33 is divided among all ranks, and 2 ranks cannot have equal parts of it"
    assert said.count(told) == 1
    assert "batch_size such as 34" in said
    assert not (tmp_path / "run").exists()


ALONE = """
from selective_backprop.lab.runs.launch import joined
from selective_backprop.lab.runs.ranks import place, total

with joined():
    if place()[0] == 1:
        raise ValueError("only here")
    total([1.0])
"""


def test_an_error_of_one_rank_is_told_by_it(tmp_path):
    (tmp_path / "alone.py").write_text(ALONE)
    result = run_on_ranks(tmp_path / "alone.py", script=True)
    assert result.returncode != 0
    assert "rank 1 of 2:" in result.stderr
    assert result.stderr.count("ValueError: only here") == 1
    assert "lost another rank" not in result.stderr


def test_ctrl_c_says_once_how_to_go_on(tmp_path):
    with start_torchrun("-m", "selective_backprop.lab", "train", "--epochs", 500, "--out", tmp_path / "run") as process:
        while not (tmp_path / "run" / "checkpoint.pt").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    assert process.returncode != 0
    assert " ".join(errors.split()).count("stopped; to continue, add --resume to the command") == 1


THREE = """
import copy
import torch
from selective_backprop.lab.runs.launch import joined
from selective_backprop.lab.runs.ranks import total
from selective_backprop.lab.runs.recipes import find_recipe
from selective_backprop.lab.runs.training import Settings, Training, load_data
from selective_backprop.testing import same

with joined():
    recipe = find_recipe("digits").with_(batch_size=33, epochs=3)
    settings = Settings(recipe=recipe, method="selective_backprop", selectivity=0.33)
    data = load_data(settings)
    training, resumed = (Training(settings, data, torch.device("cpu")) for _ in range(2))
    training.epoch()
    state = copy.deepcopy(training.state_dict())
    training.epoch()
    resumed.load_state_dict(state)
    resumed.epoch()
    equal = total([same(training.model.state_dict(), resumed.model.state_dict())])
    print("equal on", *equal)
"""


def test_three_ranks_resume_to_the_bit(tmp_path):
    (tmp_path / "three.py").write_text(THREE)
    result = run_on_ranks(tmp_path / "three.py", ranks=3, script=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "equal on 3.0"
