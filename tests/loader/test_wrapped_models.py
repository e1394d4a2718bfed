"""DDP and FSDP are scored without their wrappers."""

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import selective_backprop as sb
from tests.helpers import make_loader, make_model, train
from tests.lab.command_line import run_function
from tests.processes import leave


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
