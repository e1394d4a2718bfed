"""The lines of docs/guides/sampler.md for frameworks that the project does not depend on, run where they are installed.

The page's blocks of language "py" are these lines. They are tried with
`pip install --no-deps skorch torch_geometric pytorch-ignite fastai ray diffusers` in an environment of your own.
"""

import os
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import selective_backprop as sb
from tests.pages import DOCS, blocks

PAGE = (DOCS / "guides" / "sampler.md").read_text()
INPUTS = torch.randn(96, 20, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS[:, :5].argmax(dim=1)


def lines_of(section):
    """The blocks of a section of the page."""
    text = PAGE[PAGE.index(f"### {section}\n") :]
    found = [block.code for block in blocks(re.split(r"\n##+ ", text)[0]) if block.language == "py"]
    assert found, f"the page has no lines for {section}"
    return found


def run(section, **names):
    """Run the lines of a section with what they take for granted, and return what they leave."""
    torch.manual_seed(0)
    known = {"sb": sb, "torch": torch, "F": F, "nn": nn, "DataLoader": DataLoader}
    model = nn.Linear(20, 5)
    known |= {"dataset": TensorDataset(INPUTS, TARGETS), "model": model}
    known |= {"optimizer": torch.optim.SGD(model.parameters(), lr=0.5)} | names
    for code in lines_of(section):
        exec(compile(code, f"docs/guides/sampler.md, {section}", "exec"), known)
    return known


@pytest.mark.filterwarnings("ignore")  # skorch's own
def test_skorch():
    pytest.importorskip("skorch")
    found = run("skorch", X=INPUTS.numpy(), y=TARGETS.numpy(), module=nn.Linear(20, 5))
    assert found["sampler"].stats.offered == 10 * 96, "skorch trains for 10 epochs"
    assert found["net"].history[-1, "train_loss"] < found["net"].history[0, "train_loss"]


def test_pytorch_geometric():
    geometric = pytest.importorskip("torch_geometric")
    edges = torch.tensor([[0, 1], [1, 0]])
    graphs = [
        geometric.data.Data(x=torch.randn(2 + i % 3, 20), edge_index=edges, y=TARGETS[i : i + 1]) for i in range(96)
    ]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = geometric.nn.GCNConv(20, 5)

        def forward(self, data):
            return geometric.nn.global_mean_pool(self.conv(data.x, data.edge_index), data.batch)

    found = run("PyTorch Geometric", graphs=graphs, model=Net(), loss_fn=nn.CrossEntropyLoss())
    assert found["sampler"].stats.trained == 96, "the first epoch trains on everything"
    assert 0 < found["loader"].stats.trained < 96


def test_ignite():
    pytest.importorskip("ignite")
    stats = run("Ignite")["sampler"].stats
    assert stats.batches == 9 and 0 < stats.trained <= stats.offered, "3 epochs of 3 batches, as Ignite counts them"


@pytest.mark.filterwarnings("ignore")  # fastai's own
def test_fastai():
    pytest.importorskip("fastai")
    valid = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=32)
    found = run("fastai", valid=valid)
    found["learn"].fit(3, lr=0.1)
    assert found["sampler"].stats.offered == 3 * 96


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_train(monkeypatch, tmp_path):
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.train")
    monkeypatch.setenv("RAY_TRAIN_V2_ENABLED", "1")
    ray.init(
        num_cpus=4, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}}
    )
    try:
        run("Ray Train")
    finally:
        ray.shutdown()


@pytest.mark.filterwarnings("ignore")  # diffusers' own
def test_diffusion():
    diffusers = pytest.importorskip("diffusers")
    unet = diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    images = list(torch.from_numpy(np.random.default_rng(0).normal(size=(32, 1, 8, 8)).astype("float32")))
    found = run("Diffusion", unet=unet, scheduler=diffusers.DDPMScheduler(), images=images)
    assert found["sampler"].stats.trained == 32 and torch.isfinite(found["sampler"].ledger.loss).all()
