"""A loop by Accelerate: order of wrapping, accumulation, checkpoints."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

pytest.importorskip("accelerate", reason="needs the extra [transformers]")
import accelerate

import selective_backprop as sb
from selective_backprop.testing import same
from tests.helpers import digits, make_loader, make_model
from tests.integrations.forked import ranks, run_script
from tests.processes import ROOT


class Run:
    def __init__(self, accumulation=2):
        torch.manual_seed(0)
        self.accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        options = {"loader_options": {"generator": torch.Generator().manual_seed(3)}, "num_epochs": 3}
        self.loader = make_loader(sb.selective_backprop(0.4), model=self.model, **options)
        self.accelerator.register_for_checkpointing(self.loader)
        self.steps = []

    def train(self, save_at=None, folder=None):
        while self.loader.epoch < 3:
            for inputs, targets in self.loader:
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward(self.loader.loss(self.model(inputs), targets))
                    if self.accelerator.sync_gradients:
                        self.steps.append(self.loader.stats.batches)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                if self.loader.stats.batches == save_at:
                    self.accelerator.save_state(folder)


def test_a_checkpoint_of_accelerate_goes_on_exactly(tmp_path):
    whole, part = Run(), Run()
    whole.train(save_at=8, folder=tmp_path)  # between two optimizer steps, as Accelerate saves no gradients
    assert whole.steps[:4] == [2, 4, 6, 8]
    assert whole.loader.stats.batches > 10
    part.accelerator.load_state(tmp_path)
    part.train()
    assert same(whole.model.state_dict(), part.model.state_dict())
    assert whole.loader.stats.trained == part.loader.stats.trained


def test_a_prepared_loader_is_refused():
    prepared = accelerate.Accelerator(cpu=True).prepare(DataLoader(digits(), 16))
    with pytest.raises(TypeError, match="pass the DataLoader itself"):
        sb.SelectiveLoader(prepared, make_model(), nn.CrossEntropyLoss(), sb.top_k(0.5))


def test_the_example_runs(tmp_path):
    printed = run_script(ROOT / "examples" / "accelerate_loop.py", tmp_path, "--epochs", 2)
    assert "epoch 2: " in printed and "learning rate 0.00000" in printed
    assert "offered 8,192, trained " in printed


def trained_on_a_rank(accelerator, method):
    """Weights at the end, and the sizes of all batches."""
    torch.manual_seed(0)
    model = make_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    sampler = DistributedSampler(digits(), seed=1)
    loader, loss_fn = DataLoader(digits(), batch_size=16, sampler=sampler), nn.CrossEntropyLoss()
    if method is not None:
        loader = sb.SelectiveLoader(loader, model, loss_fn, method, num_epochs=3)
    torch.manual_seed(accelerator.process_index)
    sizes = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            accelerator.backward((loss_fn if method is None else loader.loss)(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
            sizes.append(len(targets))
    return accelerator.unwrap_model(model).state_dict(), sizes


def on_a_rank(folder):
    accelerator = accelerate.Accelerator(cpu=True)
    methods = {"plain": None, "everything": sb.selective_backprop(1.0), "selected": sb.selective_backprop(0.4)}
    return {name: trained_on_a_rank(accelerator, method) for name, method in methods.items()}


def test_two_ranks(tmp_path):
    first, second = ranks(on_a_rank, tmp_path)
    for rank in (first, second):
        assert same(rank["plain"], rank["everything"]), "plain training at selectivity 1"
        assert min(rank["selected"][1]) >= 8, "no small batches"
    assert len(first["selected"][1]) == len(second["selected"][1]) < len(first["plain"][1]), "as many batches on each"
