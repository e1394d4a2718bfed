"""Narrow ResNets for 32x32 images.

Deep Residual Learning for Image Recognition, He et al. 2015, section 4.2, https://arxiv.org/abs/1512.03385.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from selective_backprop_lab.models.layers import classifier, conv, normalised


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (option A of the paper)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(channels_in, channels, 3, stride)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3)
        self.norm2 = nn.BatchNorm2d(channels)
        self.stride, self.new_channels = stride, channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        # In place: a third of the memory traffic, and BatchNorm's backward pass needs its input, not its output.
        out = F.relu(self.norm1(self.conv1(x)), inplace=True)
        out = self.norm2(self.conv2(out))
        if self.new_channels:
            before = self.new_channels // 2
            x = x[:, :, :: self.stride, :: self.stride]
            x = F.pad(x, (0, 0, 0, 0, before, self.new_channels - before))
        return F.relu(out + x, inplace=True)


def cifar_resnet(depth: int, num_classes: int = 10, channels: int = 3, *, width: int = 16) -> nn.Module:
    """ResNet with three stages of (depth - 2) / 6 blocks each, with width, 2 * width and 4 * width channels.

    >>> sum(p.numel() for p in cifar_resnet(56).parameters())
    853018
    """
    layers: list[nn.Module] = [*normalised(channels, width, 3), nn.ReLU(inplace=True)]
    channels_in = width
    for stage in range(3):
        for block in range((depth - 2) // 6):
            layers.append(_Block(channels_in, width << stage, 2 if stage > 0 and block == 0 else 1))
            channels_in = width << stage
    return nn.Sequential(*layers, *classifier(channels_in, num_classes))
