"""Checkpoints of several ranks, in real processes."""

import copy
import errno
import resource
import signal
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import selective_backprop as sb
from selective_backprop.testing import same
from tests.checkpoint.runs import RandomState
from tests.distributed import launch
from tests.distributed.launch import run_phases
from tests.helpers import digits, make_model

EXAMPLES, EPOCHS = 120, 2


class Run:
    """Digits trained by DDP; every rank has its own random state and its own statistics of BatchNorm."""

    def __init__(self, ranks, method):
        torch.manual_seed(ranks.rank)
        self.model = DistributedDataParallel(make_model(), broadcast_buffers=False)
        self.sampler = DistributedSampler(range(EXAMPLES), num_replicas=ranks.size, rank=ranks.rank)
        data = DataLoader(digits(EXAMPLES), batch_size=8, sampler=self.sampler)
        self.loader = sb.SelectiveLoader(data, self.model, nn.CrossEntropyLoss(), method, num_epochs=EPOCHS)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.parts = {"model": self.model, "optimizer": self.optimizer, "random": RandomState()}

    def train(self, on_step=lambda step: None):
        ids = []
        for _ in range(self.loader.epoch, EPOCHS):
            self.sampler.set_epoch(self.loader.epoch)
            for inputs, targets in self.loader:
                self.optimizer.zero_grad()
                self.loader.loss(self.model(inputs), targets).backward()
                self.optimizer.step()
                ids.append(self.loader.batch.ids.clone())
                on_step(self.loader.stats.batches)
        return {"ids": ids, "states": copy.deepcopy({name: part.state_dict() for name, part in self.parts.items()})}


def begin(ranks, folder, name, method, step):
    run = Run(ranks, method())

    def on_step(now):
        if now in (step - 1, step):
            sb.save_checkpoint(folder / name, run.loader, **run.parts)

    return run.train(on_step) | {"step": step}


def resume(ranks, folder, name, method):
    run = Run(ranks, method())
    torch.manual_seed(99)  # what the checkpoint has to undo
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert sb.load_checkpoint(folder / name, run.loader, **run.parts)
    step = run.loader.stats.batches
    return run.train() | {"step": step, "warnings": [str(warning.message) for warning in caught]}


def damage(ranks, folder, name):
    if ranks.rank == 0:
        file = max((folder / name).iterdir()) / "rank-1.pt"
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)


def by_percentile():
    return sb.selective_backprop(0.5)


def test_two_ranks_go_on_exactly_also_from_the_checkpoint_before_a_damaged_one(tmp_path):
    cases = [("percentile", by_percentile, 4), ("ledger", sb.ledger_backprop, 10)]
    phases = []
    for name, method, step in cases:
        phases += [(2, begin, (name, method, step)), (2, resume, (name, method))]
        phases += [(2, damage, (name,)), (2, resume, (name, method))]
    results = run_phases(phases, tmp_path)
    for number, (_, _, step) in enumerate(cases):
        saved, resumed, _, older = results[4 * number : 4 * number + 4]
        for before, after, shift in [
            (s, r, i) for i, found in ((0, resumed), (1, older)) for s, r in zip(saved, found, strict=True)
        ]:
            assert after["step"] == step - shift
            assert same(after["ids"], before["ids"][step - shift :])
            assert same(after["states"], before["states"])
        assert [len(result["warnings"]) for result in older] == [1, 0]
        assert "rank-1.pt" in older[0]["warnings"][0]


class Bare:
    """What stands for a loader: a number."""

    number = 0

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


class Net(nn.Module):
    """Sizes that two or three ranks cannot share evenly."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm, self.second = nn.Linear(64, 7), nn.BatchNorm1d(7), nn.Linear(7, 10)

    def forward(self, inputs):
        return self.second(self.norm(self.first(inputs)).relu())


def shard(ranks, folder, save):
    """Two models whose parameters are spread over the ranks, where there are several, and an optimizer of each."""
    models = {"net": Net(0 if save else 1), "other": Net(2 if save else 3)}
    for model in models.values():
        if ranks.size > 1:
            for module in (model.first, model.second, model):
                fully_shard(module, mesh=init_device_mesh("cpu", (ranks.size,)))
    optimizers = {f"of_{name}": torch.optim.AdamW(model.parameters(), lr=0.01) for name, model in models.items()}
    parts, loader = models | optimizers, Bare()
    if save:
        inputs, targets = next(iter(DataLoader(digits(EXAMPLES), batch_size=16)))
        for model, optimizer in zip(models.values(), optimizers.values(), strict=True):
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        loader.number = 5
        sb.save_checkpoint(folder / "checkpoints", loader, **parts)
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*single process")
            assert sb.load_checkpoint(folder / "checkpoints", loader, **parts)
        assert loader.number == 5
    tensors = {f"{name}.{key}": value for name, model in models.items() for key, value in model.state_dict().items()}
    for name, optimizer in optimizers.items():
        for number, values in optimizer.state_dict()["state"].items():
            tensors |= {f"{name}.{number}.{key}": value for key, value in values.items()}
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in tensors.items()}


def test_models_spread_over_ranks_are_spread_anew(tmp_path):
    saved, *loaded = run_phases([(2, shard, (True,)), *((size, shard, (False,)) for size in (2, 3, 1))], tmp_path)
    assert any(name.endswith("exp_avg") for name in saved[0])
    for results in loaded:
        for result in results:
            assert same(result, saved[0])


def save_in_vain(ranks, folder):
    """What each rank is told when rank 1 has no room, and what is loaded then."""
    loader, model = Bare(), nn.Linear(3, 3)
    sb.save_checkpoint(folder / "run", loader, model=model)
    limits, told = resource.getrlimit(resource.RLIMIT_FSIZE), {}
    loader.number = 1
    try:
        if ranks.rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        sb.save_checkpoint(folder / "run", loader, model=model)
    except (OSError, RuntimeError) as error:
        told = {"kind": type(error).__name__, "number": getattr(error, "errno", None), "text": str(error)}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    sb.load_checkpoint(folder / "run", loader, model=model)
    return told | {"loaded": loader.number, "left": sorted(path.name for path in (folder / "run").iterdir())}


def test_all_ranks_are_told_when_one_has_no_room(tmp_path):
    first, second = run_phases([(2, save_in_vain, ())], tmp_path)[0]
    assert second["kind"] == "OSError" and second["number"] == errno.EFBIG
    assert first["kind"] == "RuntimeError" and "rank 1 failed" in first["text"]
    assert first["left"] == second["left"] == ["checkpoint-00000001"] and not first["loaded"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_in_the_middle_of_a_save_loses_nothing(rank, tmp_path):
    folder = tmp_path / "run"
    assert [int(loaded) for loaded in launch.run("killed_save:job", tmp_path, 2, str(folder), -1, 0)] == [0, 0]
    results = launch.finish(*launch.start("killed_save:job", tmp_path, 2, str(folder), rank, 1 if rank else 3))
    assert results[rank][0] == -signal.SIGKILL and results[1 - rank][0] != 0
    assert "lost another rank" in results[1 - rank][1]
    assert [int(loaded) for loaded in launch.run("killed_save:job", tmp_path, 2, str(folder), -1, 0)] == [1, 1]
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-00000001", "checkpoint-00000002"]
