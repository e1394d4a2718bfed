"""The lines of docs/guides/sampler.md for frameworks that the project does not depend on, run where they are installed.

The page's blocks of language "py" are these lines. skorch is in the extra dev; the others are tried in an environment
of your own with `pip install --no-deps sentence-transformers torch_geometric pytorch-ignite fastai ray diffusers`.
"""

import os
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import make_classification
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


def run(section, seed=0, **names):
    """Run the lines of a section with what they take for granted, and return what they leave."""
    torch.manual_seed(seed)
    known = {"sb": sb, "torch": torch, "F": F, "nn": nn, "DataLoader": DataLoader}
    model = nn.Linear(20, 5)
    known |= {"dataset": TensorDataset(INPUTS, TARGETS), "model": model}
    known |= {"optimizer": torch.optim.SGD(model.parameters(), lr=0.5)} | names
    for code in lines_of(section):
        exec(compile(code, f"docs/guides/sampler.md, {section}", "exec"), known)
    return known


class SkorchsExample(nn.Module):
    """The module of skorch's own README, which returns probabilities."""

    def __init__(self):
        super().__init__()
        self.dense0, self.dense1, self.output = nn.Linear(20, 10), nn.Linear(10, 10), nn.Linear(10, 2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, inputs):
        hidden = self.dropout(self.dense0(inputs).relu())
        return self.output(self.dense1(hidden).relu()).softmax(-1)


@pytest.mark.filterwarnings("ignore")  # skorch's own
def test_skorch_learns_as_well_as_without_the_sampler():
    skorch = pytest.importorskip("skorch")
    points, classes = make_classification(1000, 20, n_informative=10, random_state=0)
    points, classes = points.astype(np.float32), classes.astype(np.int64)
    plain, ours = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        net = skorch.NeuralNetClassifier(SkorchsExample, train_split=None, iterator_train__shuffle=True, lr=0.1)
        plain.append(net.fit(points, classes).score(points, classes))
        found = run("skorch", X=points, y=classes, module=SkorchsExample, seed=seed)
        assert found["sampler"].stats.offered == 10 * len(points), "skorch trains for 10 epochs"
        ours.append(found["net"].score(points, classes))
    assert np.mean(ours) > np.mean(plain) - 0.02, (plain, ours)


@pytest.mark.filterwarnings("ignore")  # sentence-transformers' own
def test_sentence_transformers(tmp_path):
    sentences = pytest.importorskip("sentence_transformers")
    from datasets import Dataset
    from sentence_transformers.models import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["[UNK]", *"abcdefgh"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = sentences.SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu")
    letters = "abcdefgh"
    pairs = Dataset.from_dict(
        {
            "first": [f"{letters[i % 8]} {letters[i // 8 % 8]}" for i in range(64)],
            "second": [f"{letters[i % 8]}" for i in range(64)],
            "score": [float(i % 2) for i in range(64)],
        }
    )
    args = sentences.SentenceTransformerTrainingArguments(
        str(tmp_path), num_train_epochs=3, per_device_train_batch_size=8, report_to=[], use_cpu=True, disable_tqdm=True
    )
    before = model[0].embedding.weight.detach().clone()
    found = run("sentence-transformers", model=model, pairs=pairs, args=args)
    assert found["sampler"].stats.offered == 3 * 64
    assert not torch.equal(before, model[0].embedding.weight)

    from selective_backprop.integrations.transformers import SelectiveTrainer

    class Both(SelectiveTrainer, sentences.SentenceTransformerTrainer):
        pass

    with pytest.raises(TypeError, match="SelectiveSampler"):
        Both(model=model, args=args, train_dataset=pairs, loss=found["loss"], method=sb.ledger_backprop())


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
