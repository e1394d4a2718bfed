"""Networks that train on a CPU in seconds to minutes."""

from __future__ import annotations

from torch import nn

from selective_backprop_lab.models.cifar_resnet import cifar_resnet
from selective_backprop_lab.models.layers import classifier, normalised


def small_cnn(num_classes: int = 10, channels: int = 1, width: int = 32) -> nn.Module:
    """Three convolutions with BatchNorm: trains on 8x8 digits in seconds.

    >>> import torch
    >>> small_cnn()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    layers: list[nn.Module] = []
    for channels_in, channels_out in ((channels, width), (width, width), (width, 2 * width)):
        layers += [*normalised(channels_in, channels_out, 3), nn.ReLU()]
    return nn.Sequential(*layers, *classifier(2 * width, num_classes))


def strided_cnn(num_classes: int = 10, channels: int = 3, *, width: int = 16, stem_stride: int = 2) -> nn.Module:
    """Three strided convolutions with BatchNorm, made for studies of many runs: 27,000 examples a second on one core.

    Each layer halves the image's side, the first one divides it by `stem_stride`. Channel counts are multiples of 16,
    the width of a vector register: other widths are slower for the same number of operations.

    >>> sum(p.numel() for p in strided_cnn().parameters())
    24682
    """
    stem = nn.Conv2d(channels, width, 4, stem_stride, padding=1 if stem_stride < 4 else 0, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    for channels_in in (width, 2 * width):
        layers += [*normalised(channels_in, 2 * channels_in, 3, 2), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *classifier(4 * width, num_classes))


def small_resnet(num_classes: int = 10, channels: int = 3, *, width: int = 16) -> nn.Module:
    """ResNet-8: one block in each of three stages; 0.08 million parameters, four times as many at twice the width.

    >>> sum(p.numel() for p in small_resnet().parameters())
    75290
    """
    return cifar_resnet(8, num_classes, channels, width=width)
