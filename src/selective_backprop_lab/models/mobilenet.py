"""MobileNetV2 for 32x32 images.

MobileNetV2: Inverted Residuals and Linear Bottlenecks, Sandler et al. 2018, https://arxiv.org/abs/1801.04381.
"""

from __future__ import annotations

from torch import nn

from selective_backprop_lab.models.layers import Residual, classifier, normalised, projection

# Table 2 of the paper: expansion, channels, blocks, stride of the first. The second has stride 1 here, not 2.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _inverted_residual(channels_in: int, channels: int, expansion: int, stride: int) -> nn.Module:
    """Expand by a 1x1 convolution, filter each channel by a 3x3 one, project by a 1x1 one without activation."""
    width = expansion * channels_in
    branch = nn.Sequential(
        *normalised(channels_in, width, 1),
        nn.ReLU(),
        *normalised(width, width, 3, stride, groups=width),
        nn.ReLU(),
        *normalised(width, channels, 1),
    )
    return Residual(branch, projection(channels_in, channels, stride)) if stride == 1 else branch


def mobilenet_v2(num_classes: int = 10, channels: int = 3) -> nn.Module:
    """MobileNetV2 as adapted in https://github.com/kuangliu/pytorch-cifar: 2.3 million parameters.

    Unlike in the paper, the stem and the second stage have stride 1, shortcuts are projected where the number
    of channels changes, the first stage has its 1x1 expansion too, and ReLU has no upper limit.

    >>> sum(p.numel() for p in mobilenet_v2().parameters())
    2296922
    """
    layers: list[nn.Module] = [*normalised(channels, 32, 3), nn.ReLU()]
    channels_in = 32
    for expansion, width, blocks, first_stride in _STAGES:
        for block in range(blocks):
            layers.append(_inverted_residual(channels_in, width, expansion, first_stride if block == 0 else 1))
            channels_in = width
    layers += [*normalised(channels_in, 1280, 1), nn.ReLU()]
    return nn.Sequential(*layers, *classifier(1280, num_classes))
