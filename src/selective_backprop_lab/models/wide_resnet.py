"""Wide ResNets for 32x32 images.

Wide Residual Networks, Zagoruyko and Komodakis 2016, https://arxiv.org/abs/1605.07146.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from selective_backprop_lab.models.layers import classifier, conv, kaiming_init


class _Block(nn.Module):
    """Two 3x3 convolutions, each after normalisation and ReLU."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.conv1 = conv(channels_in, channels, 3, stride)
        self.norm2 = nn.BatchNorm2d(channels)
        self.conv2 = conv(channels, channels, 3)
        same = stride == 1 and channels_in == channels
        self.shortcut = None if same else conv(channels_in, channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        out = self.conv2(F.relu(self.norm2(self.conv1(active))))
        # As in the authors' code: a shortcut with a convolution starts after the ReLU, as the branch does.
        total: Tensor = out + (x if self.shortcut is None else self.shortcut(active))
        return total


def wide_resnet(depth: int, widen_factor: int, num_classes: int = 10, channels: int = 3) -> nn.Module:
    """WRN-depth-widen_factor: three stages of (depth - 4) / 6 blocks each, widen_factor times as wide as a ResNet's.

    >>> sum(p.numel() for p in wide_resnet(40, 1).parameters())
    563930
    """
    layers: list[nn.Module] = [conv(channels, 16, 3)]
    channels_in = 16
    for stage in range(3):
        width = (16 << stage) * widen_factor
        for block in range((depth - 4) // 6):
            layers.append(_Block(channels_in, width, 2 if stage > 0 and block == 0 else 1))
            channels_in = width
    layers += [nn.BatchNorm2d(channels_in), nn.ReLU(), *classifier(channels_in, num_classes)]
    return kaiming_init(nn.Sequential(*layers))
