"""Checkpoints of several ranks, in real processes: exact with as many, nothing lost with more or fewer."""

import copy
import errno
import os
import resource
import warnings
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import selective_backprop as sb
from selective_backprop.checkpoint import folders
from selective_backprop.files.locks import FolderLock
from selective_backprop.testing import same
from tests.checkpoint.test_saving import RandomState
from tests.distributed.threads import run_phases
from tests.helpers import digits, make_model
from tests.lab.command_line import run_function, run_script_on_ranks

EXAMPLES = 120  # as many for each of two or three ranks
ROWS = 121  # of the ledger: blocks of ranks differ in size
EPOCHS = 2


class Run:
    """Digits trained by DDP where there are several ranks; every rank has its own random state."""

    def __init__(self, ranks, method):
        rank, size = ranks.rank, ranks.size
        torch.manual_seed(rank)
        self.model = make_model()
        wrapped = self.model if size == 1 else DistributedDataParallel(self.model)
        self.sampler = DistributedSampler(range(EXAMPLES), num_replicas=size, rank=rank)
        data = DataLoader(digits(ROWS), batch_size=8, sampler=self.sampler)
        self.loader = sb.SelectiveLoader(data, wrapped, nn.CrossEntropyLoss(), method, num_epochs=EPOCHS)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.parts = {"model": wrapped, "optimizer": self.optimizer, "random": RandomState()}
        self.wrapped = wrapped
        self.ids = []

    def train(self, *, until=EPOCHS, on_step=lambda step: None):
        for _ in range(self.loader.epoch, until):
            self.sampler.set_epoch(self.loader.epoch)
            for inputs, targets in self.loader:
                self.optimizer.zero_grad()
                self.loader.loss(self.wrapped(inputs), targets).backward()
                self.optimizer.step()
                self.ids.append(self.loader.batch.ids.clone())
                on_step(self.loader.stats.batches)

    def result(self):
        whole = self.loader.ledger.whole()
        result = {
            "ids": self.ids,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ledger": {name: getattr(whole, name) for name in whole.names},
            "dropped": self.loader.stats.dropped,
        }
        return copy.deepcopy(result)  # training goes on


def begin(ranks, folder, name, method, step):
    """Save after some steps, and go on."""
    run, saved = Run(ranks, method()), {}

    def save(now):
        if now == step:
            sb.save_checkpoint(folder / name, run.loader, **run.parts)
            saved.update(run.result())

    run.train(on_step=save)
    return run.result() | {"saved": saved}


def resume(ranks, folder, name, method, until=EPOCHS):
    run = Run(ranks, method())
    torch.manual_seed(99)  # what the checkpoint has to undo
    assert sb.load_checkpoint(folder / name, run.loader, **run.parts)
    loaded = run.result()
    run.train(until=until)
    return run.result() | {"loaded": loaded}


def by_percentile():
    return sb.selective_backprop(0.5)


def by_ledger():
    return sb.methods.ledger_percentile(0.5)


def counts(results):
    return Counter(i for result in results for ids in result["ids"] for i in ids.tolist())


def test_as_many_ranks_go_on_exactly(tmp_path):
    phases = []
    for name, method, step in (("percentile", by_percentile, 4), ("ledger", by_ledger, 10)):
        phases += [(2, begin, (name, method, step)), (2, resume, (name, method))]
    results = run_phases(phases, tmp_path)
    for saved, resumed in (results[:2], results[2:]):
        for before, after in zip(saved, resumed, strict=True):
            assert same(after["ids"], before["ids"][len(before["saved"]["ids"]) :])
            assert same(after["model"], before["model"])
            assert same(after["optimizer"], before["optimizer"])
            assert same(after["ledger"], before["ledger"])


def test_another_number_of_ranks_loses_nothing(tmp_path):
    saving = {
        "alone": (1, begin, ("alone", by_percentile, 2)),
        "two": (2, begin, ("two", by_percentile, 2)),
        "three": (3, begin, ("three", by_percentile, 2)),
        "planned": (2, begin, ("planned", by_ledger, 10)),  # in the second epoch, which is decided about at its start
        "plain": (2, begin, ("plain", sb.traditional, 3)),
    }
    changes = [("two", 1, 1), ("alone", 2, 1), ("two", 3, 1), ("three", 2, 2), ("planned", 3, 2), ("plain", 1, 1)]
    loading = [(size, resume, (*saving[name][2][:2], epochs)) for name, size, epochs in changes]
    results = run_phases([*saving.values(), *loading], tmp_path)
    saved_by_name = dict(zip(saving, results, strict=False))
    for (name, _, epochs), resumed in zip(changes, results[len(saving) :], strict=True):
        check_nothing_lost(saved_by_name[name], resumed, epochs)


def check_nothing_lost(saved, resumed, epochs):
    ledger = resumed[0]["ledger"]
    assert ledger["offered"].tolist() == [epochs] * EXAMPLES + [0]
    selected = Counter({i: count for i, count in enumerate(ledger["selected"].tolist()) if count})
    trained = counts(result["saved"] for result in saved) + counts(resumed)
    assert trained == selected and sum(result["dropped"] for result in resumed) < len(resumed) * epochs
    assert len({len(result["ids"]) for result in resumed}) == 1
    for result in resumed:
        for part in ("model", "optimizer", "ledger"):
            assert same(result["loaded"][part], saved[0]["saved"][part])


def guided(ranks, folder, name, method, *, save_at=None, until=1):
    """The loaders that the guides show: shuffle=True and a generator in one process, DistributedSampler on several."""
    torch.manual_seed(0)
    model, data = make_model(), digits(EXAMPLES)
    if ranks.size == 1:
        sampler, train_loader = None, DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator())
    else:
        model, sampler = DistributedDataParallel(model), DistributedSampler(data)
        train_loader = DataLoader(data, batch_size=8, sampler=sampler)
    loader = sb.SelectiveLoader(train_loader, model, nn.CrossEntropyLoss(), method(), num_epochs=EPOCHS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trained = []
    sb.load_checkpoint(folder / name, loader, model=model, optimizer=optimizer)
    for epoch in range(loader.epoch, until):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loader.loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            trained += loader.batch.ids.tolist()
            if loader.stats.batches == save_at:
                sb.save_checkpoint(folder / name, loader, model=model, optimizer=optimizer)
                return {"trained": trained}
    if save_at is not None:
        sb.save_checkpoint(folder / name, loader, model=model, optimizer=optimizer)
    return {"trained": trained, "offered": loader.ledger.whole().offered, "selected": loader.ledger.whole().selected}


def in_mid_epoch(ranks, folder, name, method):
    return guided(ranks, folder, name, method, save_at=3)


def between_epochs(ranks, folder, name, method):
    return guided(ranks, folder, name, method, save_at=10**6)


def go_on_for(ranks, folder, name, method, until):
    return guided(ranks, folder, name, method, until=until)


def test_one_process_to_several_and_back_with_the_loaders_of_the_guides(tmp_path):
    cases = [
        (f"{first.__name__} {method.__name__} {old}", method, first, old, new)
        for method in (by_percentile, sb.ledger_backprop)
        for first in (in_mid_epoch, between_epochs)
        for old, new in ((1, 2), (2, 1))
    ]
    phases = []
    for name, method, first, old, new in cases:
        phases += [(old, first, (name, method)), (new, go_on_for, (name, method, 1 + (first is between_epochs)))]
    results = run_phases(phases, tmp_path)
    for (name, _, first, *_), saved, resumed in zip(cases, results[::2], results[1::2], strict=True):
        epochs = 1 + (first is between_epochs)
        assert resumed[0]["offered"].tolist() == [epochs] * EXAMPLES, name
        trained = Counter(i for result in (*saved, *resumed) for i in result["trained"])
        assert [trained[i] for i in range(EXAMPLES)] == resumed[0]["selected"].tolist(), name


class Net(nn.Module):
    """Sizes that two or three ranks cannot share evenly."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 7), nn.Linear(7, 10)

    def forward(self, inputs):
        return self.second(self.first(inputs).relu())


def shard(ranks, folder, save):
    """A model whose parameters are spread over the ranks, where there are several."""
    model = Net()
    if ranks.size > 1:
        for module in (model.first, model.second, model):
            fully_shard(module, mesh=DeviceMesh.from_group(ranks.group, "cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = DistributedSampler(digits(EXAMPLES), ranks.size, ranks.rank)
    data = DataLoader(digits(EXAMPLES), batch_size=8, sampler=sampler)
    loader = sb.SelectiveLoader(data, model, nn.CrossEntropyLoss(), sb.selective_backprop(0.5))
    parts = {"net": model, "optimizer": optimizer}
    if save:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loader.loss(model(inputs), targets).backward()
            optimizer.step()
        sb.save_checkpoint(folder / "checkpoints", loader, **parts)
    else:
        assert sb.load_checkpoint(folder / "checkpoints", loader, **parts)
    tensors = dict(model.state_dict())
    for number, values in optimizer.state_dict()["state"].items():
        tensors |= {f"{number}.{name}": value for name, value in values.items()}
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in tensors.items()}


def test_models_spread_over_ranks_are_spread_anew(tmp_path):
    saved, *loaded = run_phases([(2, shard, (True,)), (3, shard, (False,)), (1, shard, (False,))], tmp_path)
    assert any(name.endswith("exp_avg") for name in saved[0])
    for results in loaded:
        for result in results:
            assert same(result, saved[0])


# ---- few examples, failures, damage


def make_small(ranks, examples):
    """A loader with fewer examples than ranks could have rows of, and what is in its ledger."""
    model = nn.Linear(64, 10)
    loader = sb.SelectiveLoader(
        DataLoader(digits(examples), batch_size=2), model, nn.CrossEntropyLoss(), sb.methods.ledger_percentile(0.5)
    )
    return loader, model


class Fails:
    def __init__(self, rank):
        self.rank = rank

    def state_dict(self):
        if self.rank == 1:
            raise OSError("no space left")
        return {}

    def load_state_dict(self, state):
        pass


def save_small(ranks, folder):
    loader, model = make_small(ranks, 4)
    loader.ledger.record_losses(torch.tensor([ranks.rank, 3]), torch.tensor([1.0, ranks.rank]), epoch=0)
    loader.ledger.deliver()
    loader.ledger.count_selected(torch.tensor([ranks.rank]))  # not delivered
    sb.save_checkpoint(folder / "small", loader, model=model)
    sb.save_checkpoint(folder / "small", loader, model=model)
    whole = loader.ledger.whole().state_dict()
    problem = ""
    try:
        sb.save_checkpoint(folder / "small", loader, model=model, odd=Fails(ranks.rank))
    except (OSError, RuntimeError) as error:
        problem = f"{type(error).__name__}: {error}"
    if ranks.rank == 0:
        damaged = folder / "small" / "checkpoint-2" / "rank-1.pt"
        damaged.write_bytes(damaged.read_bytes()[:-1])
    return {"ledger": whole, "problem": problem}


def load_small(ranks, folder):
    loader, model = make_small(ranks, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sb.load_checkpoint(folder / "small", loader, model=model)
    return {"ledger": loader.ledger.whole().state_dict(), "warnings": [str(warning.message) for warning in caught]}


def test_few_examples_failures_and_damage(tmp_path):
    saved, *loaded = run_phases([(3, save_small, ()), *((size, load_small, ()) for size in (3, 2, 1))], tmp_path)
    assert saved[0]["ledger"]["selected"].tolist() == [1, 1, 1, 0]
    assert [result["problem"] for result in saved] == [
        "RuntimeError: rank 1 failed: OSError: no space left",
        "OSError: no space left",
        "RuntimeError: rank 1 failed: OSError: no space left",
    ]
    for results in loaded:
        for rank, result in enumerate(results):
            assert same(result["ledger"], saved[0]["ledger"])
            told = [text for text in result["warnings"] if "as newer checkpoints are damaged: checkpoint-2" in text]
            assert len(told) == (rank == 0)


# ---- folders that cannot be written to


def save_in_vain(ranks, folder, name):
    """What each rank is told; where rank 1 has no room, and the folder is its own or another process's."""
    run = Run(ranks, by_percentile())
    folders.PATIENCE = 0.1  # seconds, in this process alone: nobody frees the folder
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if name == "no room":
            sb.save_checkpoint(folder / name, run.loader, **run.parts)
            if ranks.rank == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        sb.save_checkpoint(folder / name, run.loader, **run.parts)
    except (OSError, RuntimeError) as error:
        told = {"kind": type(error).__name__, "number": getattr(error, "errno", None), "text": str(error)}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return told | {"loaded": sb.load_checkpoint(folder / name, run.loader, **run.parts)}


def test_all_ranks_are_told_when_one_has_no_room_or_the_folder_is_taken(tmp_path):
    (tmp_path / "taken").mkdir()
    lock = FolderLock(tmp_path / "taken")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        no_room, taken = run_phases([(2, save_in_vain, (name,)) for name in ("no room", "taken")], tmp_path)
    lock.release()
    for told in no_room:
        assert (told["kind"], told["number"], told["loaded"]) == ("OSError", errno.EFBIG, True), told
        assert "on rank 1 (" in told["text"] and "bytes are free there" in told["text"]
    assert sorted(path.name for path in (tmp_path / "no room").glob("checkpoint-*")) == ["checkpoint-1"]
    for told in taken:
        assert told["kind"] == "RuntimeError" and "another process saves its checkpoints to" in told["text"], told
        assert not told["loaded"]


# ---- ranks that die


def launch(folder, *kills):
    """What torchrun does, with ranks that are forked: they have torch already. test_failures.py has torchrun itself."""
    # Or ranks that start again may find addresses of those that died (pytorch issue 135712).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    from tests.distributed import elastic_run  # which imports this module

    one_node = {"min_nodes": 1, "max_nodes": 1, "rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    config = LaunchConfig(**one_node, nproc_per_node=2, max_restarts=2, run_id=folder.name, start_method="fork")
    elastic_launch(config, elastic_run.main)(folder, *kills)


def results_in(folder):
    return [torch.load(folder / f"result-{rank}.pt", weights_only=True) for rank in range(2)]


def test_a_killed_run_ends_with_the_same_weights(tmp_path):
    for name in ("undisturbed", "disturbed"):
        (tmp_path / name).mkdir()
    done = run_script_on_ranks(Path(__file__).with_name("elastic_run.py"), tmp_path / "undisturbed")
    assert done.returncode == 0, done.stderr
    # Before the first checkpoint, and between two of them in the second epoch.
    done = run_function(launch, tmp_path / "disturbed", "1:1", "0:5")
    assert done.returncode == 0, done.stderr[-5000:]
    undisturbed, disturbed = results_in(tmp_path / "undisturbed"), results_in(tmp_path / "disturbed")
    starts = [[(tmp_path / "disturbed" / f"start-{i}-{rank}").read_text() for rank in range(2)] for i in range(3)]
    assert starts == [["none"] * 2, ["none"] * 2, ["4"] * 2]
    for one, other in zip(disturbed, undisturbed, strict=True):
        for part in ("model", "optimizer", "ledger"):
            assert same(one[part], other[part])
        assert same(one["ids"], other["ids"][4:])
