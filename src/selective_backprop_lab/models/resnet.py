"""ResNet-18 with a stem for 32x32 images, and ResNet-50 for ImageNet.

Deep Residual Learning for Image Recognition, He et al. 2015, table 1, https://arxiv.org/abs/1512.03385.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from selective_backprop_lab.models.layers import Residual, classifier, kaiming_init, normalised, projection


def _basic(channels_in: int, width: int, stride: int) -> tuple[nn.Module, int]:
    """A block of two 3x3 convolutions, and its number of output channels."""
    branch = nn.Sequential(*normalised(channels_in, width, 3, stride), nn.ReLU(), *normalised(width, width, 3))
    return Residual(branch, projection(channels_in, width, stride)), width


def _bottleneck(channels_in: int, width: int, stride: int) -> tuple[nn.Module, int]:
    """A block of 1x1, 3x3 and 1x1 convolutions, the last four times as wide, and its number of output channels.

    The stride is in the 3x3 convolution, not in the first one as in the paper. This is v1.5, which is used today.
    """
    branch = nn.Sequential(
        *normalised(channels_in, width, 1),
        nn.ReLU(),
        *normalised(width, width, 3, stride),
        nn.ReLU(),
        *normalised(width, 4 * width, 1),
    )
    return Residual(branch, projection(channels_in, 4 * width, stride)), 4 * width


def _stages(
    make_block: Callable[[int, int, int], tuple[nn.Module, int]],
    num_blocks: Sequence[int],
    num_classes: int,
) -> list[nn.Module]:
    """Everything after the stem: stages of 64, 128, 256, 512 channels and the classifier."""
    layers: list[nn.Module] = []
    channels_in = 64
    for stage, blocks in enumerate(num_blocks):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            residual, channels_in = make_block(channels_in, 64 << stage, stride)
            layers += [residual, nn.ReLU()]
    return [*layers, *classifier(channels_in, num_classes)]


def resnet18(num_classes: int = 10, channels: int = 3) -> nn.Module:
    """ResNet-18 with a 3x3 stem of stride 1 for 32x32 images: 11.2 million parameters.

    As in https://github.com/kuangliu/pytorch-cifar and Cutout, DeVries and Taylor 2017,
    https://arxiv.org/abs/1708.04552.
    """
    stem = [*normalised(channels, 64, 3), nn.ReLU()]
    return nn.Sequential(*stem, *_stages(_basic, (2, 2, 2, 2), num_classes))


def resnet50(num_classes: int = 10, channels: int = 3) -> nn.Module:
    """ResNet-50 for ImageNet: 25.6 million parameters with 1000 classes.

    Its stem makes images four times smaller, so use large ones. Initial weights are as in the paper.
    """
    stem = [*normalised(channels, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    return kaiming_init(nn.Sequential(*stem, *_stages(_bottleneck, (3, 4, 6, 3), num_classes)))
