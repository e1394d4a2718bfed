"""DenseNet-121 for 32x32 images: bottlenecks in the layers, compression between the blocks.

Densely Connected Convolutional Networks, Huang et al. 2017, https://arxiv.org/abs/1608.06993.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from selective_backprop_lab.models.layers import classifier, conv, kaiming_init


def _activated(channels_in: int, convolution: nn.Conv2d) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels_in), nn.ReLU(), convolution]


class _Layer(nn.Module):
    """A layer that appends `growth` channels to its input."""

    def __init__(self, channels_in: int, growth: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *_activated(channels_in, conv(channels_in, 4 * growth, 1)),
            *_activated(4 * growth, conv(4 * growth, growth, 3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.branch(x)], dim=1)


def densenet121(num_classes: int = 10, channels: int = 3) -> nn.Module:
    """DenseNet-121 with a 3x3 stem for 32x32 images, as in https://github.com/kuangliu/pytorch-cifar: 7.0 million.

    Channels, width and height are halved between its four blocks. Initial weights are as in the paper.
    """
    growth, width = 32, 64
    layers: list[nn.Module] = [conv(channels, width, 3)]
    for block, number in enumerate((6, 12, 24, 16)):
        if block > 0:
            layers += [*_activated(width, conv(width, width // 2, 1)), nn.AvgPool2d(2)]
            width //= 2
        for _ in range(number):
            layers.append(_Layer(width, growth))
            width += growth
    layers += [nn.BatchNorm2d(width), nn.ReLU(), *classifier(width, num_classes)]
    return kaiming_init(nn.Sequential(*layers))
