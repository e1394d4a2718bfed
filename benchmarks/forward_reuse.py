"""Measure what forward reuse saves on one candidate batch at selectivity 1/3, as ratios within one run.

    python benchmarks/forward_reuse.py [--rounds 20]

Plain SB makes a selection pass over all candidates, then a forward and a backward pass of the selected ones. Reuse
makes one training pass over all candidates, and a backward pass of the selected ones only. If forward costs 1 and
backward 2, the bound is (1 + 2s) / (1 + 3s) = 0.83. Numbers are medians of rounds, and the ways take turns, so that a
machine that slows down affects all alike.
"""

import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

import selective_backprop as sb
from selective_backprop.inference import NoTrace
from selective_backprop_lab.models.cifar_resnet import cifar_resnet

SELECTIVITY = 1 / 3


class Block(nn.Module):
    """Block of a small transformer: attention and a perceptron, each after a LayerNorm and added to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        examples, length, width = x.shape
        parts = self.project(self.norms[0](x)).view(examples, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts.unbind(0)).transpose(1, 2).reshape(examples, length, width)
        x = x + self.out(attended)
        return x + self.perceptron(self.norms[1](x))


class Transformer(nn.Module):
    """Classifies sequences of 64 tokens."""

    def __init__(self, width=256, layers=4, heads=4, words=1000):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Parameter(torch.randn(64, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, 10)

    def forward(self, tokens):
        return self.head(self.blocks(self.embed(tokens) + self.place).mean(1))


def with_group_norm(module):
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(4, child.num_features))
        else:
            with_group_norm(child)
    return module


def images(number):
    return torch.randn(number, 3, 32, 32), torch.randint(10, (number,))


def sequences(number):
    return torch.randint(1000, (number, 64)), torch.randint(10, (number,))


def ways(model, inputs, targets):
    """Make functions for plain SB, forward reuse and Traditional on one candidate batch, without the optimiser."""
    number = len(inputs)
    count = round(number * SELECTIVITY)
    no_trace, loss_fn = NoTrace(model), nn.CrossEntropyLoss()
    selective_loss = sb.forward_reuse.SelectiveLoss(loss_fn, sb.top_k(SELECTIVITY))

    def choose(losses):
        return losses.argsort(descending=True)[:count].sort().values

    def plain():
        with no_trace():
            chosen = choose(F.cross_entropy(model(inputs), targets, reduction="none"))
        loss_fn(model(inputs.index_select(0, chosen)), targets.index_select(0, chosen)).backward()

    def reuse():
        selective_loss(model(inputs), targets).backward()

    def traditional():
        loss_fn(model(inputs), targets).backward()

    return {"plain SB": plain, "reuse": reuse, "traditional": traditional}


def kept_by_graph(model, inputs, targets):
    """Bytes that a forward pass keeps for the backward pass."""
    sizes = {}

    def pack(tensor):
        sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        F.cross_entropy(model(inputs), targets)
    return sum(sizes.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, selectivity 1/3, median of {rounds} rounds")
    for name, model, (inputs, targets) in (
        ("ResNet-20, GroupNorm, 128 images", with_group_norm(cifar_resnet(20)), images(128)),
        ("ResNet-20, GroupNorm, 384 images", with_group_norm(cifar_resnet(20)), images(384)),
        ("ResNet-20, BatchNorm, 128 images", cifar_resnet(20), images(128)),
        ("transformer, 96 sequences", Transformer(), sequences(96)),
    ):
        steps = ways(model, inputs, targets)
        seconds = {way: [] for way in steps}
        for number in range(rounds + 1):
            for way, step in steps.items():
                model.zero_grad()
                began = time.perf_counter()
                step()
                if number:  # the first round warms up
                    seconds[way].append(time.perf_counter() - began)
        cost = {way: statistics.median(values) for way, values in seconds.items()}
        whole = kept_by_graph(model, inputs, targets)
        part = kept_by_graph(model, *(value[: round(len(inputs) * SELECTIVITY)] for value in (inputs, targets)))
        print(
            f"{name:<34} reuse / plain SB {cost['reuse'] / cost['plain SB']:.2f}; of Traditional: plain SB "
            f"{cost['plain SB'] / cost['traditional']:.2f}, reuse {cost['reuse'] / cost['traditional']:.2f}; kept for "
            f"the backward pass: {whole / 2**20:.0f} MB instead of {part / 2**20:.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
