"""Networks for small images."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (option A of He et al. 2015)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.stride, self.padding = stride, (channels - channels_in) // 2

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        if self.padding:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return F.relu(out + x)


def resnet20(num_classes: int = 10, channels: int = 3) -> nn.Module:
    """ResNet-20 for 32x32 images: 0.27 million parameters.

    >>> sum(p.numel() for p in resnet20().parameters())
    269722
    """
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    width = 16
    for stage in (16, 32, 64):
        for block in range(3):
            layers.append(_BasicBlock(width, stage, stride=2 if stage > 16 and block == 0 else 1))
            width = stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


def small_cnn(num_classes: int = 10, channels: int = 1, width: int = 32) -> nn.Module:
    """Three convolutions with BatchNorm: trains on 8x8 digits in seconds.

    >>> import torch
    >>> small_cnn()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    layers: list[nn.Module] = []
    for channels_in, channels_out in ((channels, width), (width, width), (width, 2 * width)):
        layers += [
            nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, num_classes))
