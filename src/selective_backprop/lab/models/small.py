"""Networks that train on a CPU in seconds to minutes."""

from __future__ import annotations

from torch import nn

from selective_backprop.lab.models.cifar_resnet import cifar_resnet
from selective_backprop.lab.models.layers import Norm, classifier, conv


def small_cnn(num_classes: int = 10, channels: int = 1, width: int = 32) -> nn.Module:
    """Three convolutions with BatchNorm: trains on 8x8 digits in seconds.

    >>> import torch
    >>> small_cnn()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    layers: list[nn.Module] = []
    for channels_in, channels_out in ((channels, width), (width, width), (width, 2 * width)):
        layers += [conv(channels_in, channels_out, 3), nn.BatchNorm2d(channels_out), nn.ReLU()]
    return nn.Sequential(*layers, *classifier(2 * width, num_classes))


def small_resnet(num_classes: int = 10, channels: int = 3, *, width: int = 16, norm: Norm = "batch") -> nn.Module:
    """ResNet-8: one block in each of three stages; 0.08 million parameters, four times as many at twice the width.

    >>> sum(p.numel() for p in small_resnet().parameters())
    75290
    """
    return cifar_resnet(8, num_classes, channels, width=width, norm=norm)
