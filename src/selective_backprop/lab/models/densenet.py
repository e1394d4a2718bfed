"""DenseNet-BC for 32x32 images: bottlenecks in the layers, compression between the blocks.

Densely Connected Convolutional Networks, Huang et al. 2017, https://arxiv.org/abs/1608.06993.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from selective_backprop.lab.models.layers import classifier, conv, kaiming_init


def _normalised(channels_in: int, convolution: nn.Conv2d) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels_in), nn.ReLU(), convolution]


class _Layer(nn.Module):
    """A layer that appends `growth` channels to its input."""

    def __init__(self, channels_in: int, growth: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *_normalised(channels_in, conv(channels_in, 4 * growth, 1)),
            *_normalised(4 * growth, conv(4 * growth, growth, 3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.branch(x)], dim=1)


def densenet_bc(num_layers: Sequence[int], growth: int, num_classes: int = 10, channels: int = 3) -> nn.Module:
    """DenseNet with one block per entry of `num_layers`. Channels, width and height are halved between blocks.

    The stem is a 3x3 convolution of 2 * growth channels. Initial weights are as in the paper.

    >>> densenet_bc((2, 2), growth=4)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """
    if not num_layers or min(num_layers) < 1 or growth < 1:
        raise ValueError(f"num_layers and growth must be >= 1, got {num_layers} and {growth}")
    width = 2 * growth
    layers: list[nn.Module] = [conv(channels, width, 3)]
    for block, number in enumerate(num_layers):
        if block > 0:
            layers += [*_normalised(width, conv(width, width // 2, 1)), nn.AvgPool2d(2)]
            width //= 2
        for _ in range(number):
            layers.append(_Layer(width, growth))
            width += growth
    layers += [nn.BatchNorm2d(width), nn.ReLU(), *classifier(width, num_classes)]
    return kaiming_init(nn.Sequential(*layers))


def densenet_100_12(num_classes: int = 10, channels: int = 3) -> nn.Module:
    """DenseNet-BC of 100 layers with growth rate 12, the paper's small one for CIFAR: 0.77 million parameters."""
    return densenet_bc((16, 16, 16), 12, num_classes, channels)


def densenet121(num_classes: int = 10, channels: int = 3) -> nn.Module:
    """DenseNet-121 with a 3x3 stem for 32x32 images, as in https://github.com/kuangliu/pytorch-cifar: 7.0 million."""
    return densenet_bc((6, 12, 24, 16), 32, num_classes, channels)
