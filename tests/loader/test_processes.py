"""Across processes: a run killed for real goes on in another process; DDP is scored without its wrapper."""

import os
import signal
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import selective_backprop as sb
from selective_backprop.testing import same
from tests.helpers import Noisy, make_loader, make_model, train
from tests.lab.command_line import run_function
from tests.processes import leave

METHODS = {
    "sb": lambda: sb.selective_backprop(0.4),
    "stale": lambda: sb.stale_selective_backprop(0.4, every=2),
    "pipelined": lambda: sb.selective_backprop(0.4, scoring="pipelined"),
}


def go_on(method, folder, die_at):
    """A run that saves every third step and may be killed after one; it begins where the last one was saved."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = make_loader(METHODS[method](), dataset=Noisy(), model=model, num_epochs=4)
    checkpoint, done = folder / "checkpoint.pt", []
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        done = state["done"]
        torch.set_rng_state(state["rng"])

    def on_step(step, optimizer):
        done.append(loader.batch.ids.tolist())
        if len(done) % 3 == 0:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save(parts | {"done": done, "rng": torch.get_rng_state()}, folder / "part")
            os.replace(folder / "part", checkpoint)
        if len(done) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    train(loader, model, 4, optimizer=optimizer, on_step=on_step)
    torch.save({"model": model.state_dict(), "done": done}, folder / "result.pt")


def run(method, folder, die_at=-1):
    folder.mkdir(exist_ok=True)
    return run_function(go_on, method, folder, die_at).returncode


@pytest.mark.parametrize("method", ["sb", "stale", "pipelined"])
def test_5_killed_and_resumed_in_another_process(method, tmp_path):
    assert run(method, tmp_path / "undisturbed") == 0
    for die_at in (4, 11):  # each time between two checkpoints
        assert run(method, tmp_path / "killed", die_at) == -signal.SIGKILL
    assert run(method, tmp_path / "killed") == 0
    results = [torch.load(tmp_path / name / "result.pt", weights_only=True) for name in ("undisturbed", "killed")]
    assert results[0]["done"] == results[1]["done"]
    assert same(results[0]["model"], results[1]["model"])


class Wrapper(nn.parallel.DistributedDataParallel):
    """Remembers for what it was called."""

    def forward(self, *inputs):
        self.__dict__.setdefault("calls", []).append(torch.is_grad_enabled())
        return super().forward(*inputs)


def train_wrapped_models(store):
    """In a process of its own."""
    warnings.simplefilter("error", UserWarning)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    ddp, sharded = Wrapper(make_model()), make_model()
    fully_shard(sharded)
    for model in (ddp, sharded):
        loader = make_loader(sb.selective_backprop(0.4), model=model, num_epochs=2)
        train(loader, model, 2)
        assert loader.stats.scored + loader.stats.skipped_before_loading == 406, loader.stats
    assert ddp.calls and all(ddp.calls), "the wrapper is called for training only"
    dist.destroy_process_group()
    leave()


def test_ddp_and_fsdp_models_are_scored_without_side_effects_on_the_wrapper(tmp_path):
    result = run_function(train_wrapped_models, tmp_path / "store")
    assert result.returncode == 0, result.stderr
