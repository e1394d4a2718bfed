"""GoogLeNet for 32x32 images.

Going Deeper with Convolutions, Szegedy et al. 2014, https://arxiv.org/abs/1409.4842.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from selective_backprop_lab.models.layers import classifier

# Table 1 of the paper: channels of 1x1; 3x3 reduced and full; 5x5 reduced and full; after pooling. None is a max pool.
_MODULES = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


def _conv(channels_in: int, channels: int, size: int) -> nn.Sequential:
    """Convolution, BatchNorm and ReLU. BatchNorm makes the bias useless, but published parameter counts include it."""
    convolution = nn.Conv2d(channels_in, channels, size, padding=size // 2)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.ReLU())


class _Inception(nn.Module):
    """Four branches side by side. Two 3x3 convolutions replace the 5x5 one."""

    def __init__(
        self, channels_in: int, only1x1: int, reduced3x3: int, full3x3: int, reduced5x5: int, full5x5: int, pooled: int
    ) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                _conv(channels_in, only1x1, 1),
                nn.Sequential(_conv(channels_in, reduced3x3, 1), _conv(reduced3x3, full3x3, 3)),
                nn.Sequential(
                    _conv(channels_in, reduced5x5, 1), _conv(reduced5x5, full5x5, 3), _conv(full5x5, full5x5, 3)
                ),
                nn.Sequential(nn.MaxPool2d(3, 1, padding=1), _conv(channels_in, pooled, 1)),
            ]
        )
        self.channels = only1x1 + full3x3 + full5x5 + pooled

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def googlenet(num_classes: int = 10, channels: int = 3) -> nn.Module:
    """GoogLeNet as adapted in https://github.com/kuangliu/pytorch-cifar: 6.2 million parameters.

    Unlike in the paper, the stem is a single 3x3 convolution, every convolution is followed by BatchNorm, two
    3x3 convolutions replace 5x5, and there are no auxiliary classifiers and no dropout.

    >>> sum(p.numel() for p in googlenet().parameters())
    6166250
    """
    layers: list[nn.Module] = [_conv(channels, 192, 3)]
    channels_in = 192
    for widths in _MODULES:
        if widths is None:
            layers.append(nn.MaxPool2d(3, 2, padding=1))
        else:
            module = _Inception(channels_in, *widths)
            layers.append(module)
            channels_in = module.channels
    return nn.Sequential(*layers, *classifier(channels_in, num_classes))
