"""Wide ResNets for 32x32 images.

Wide Residual Networks, Zagoruyko and Komodakis 2016, https://arxiv.org/abs/1605.07146.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from selective_backprop.lab.models.layers import Norm, classifier, conv, kaiming_init, normalisation


class _Block(nn.Module):
    """Two 3x3 convolutions, each after normalisation and ReLU, with dropout between them."""

    def __init__(self, channels_in: int, channels: int, stride: int, dropout: float, norm: Norm) -> None:
        super().__init__()
        self.norm1 = normalisation(norm, channels_in)
        self.conv1 = conv(channels_in, channels, 3, stride)
        self.norm2 = normalisation(norm, channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv(channels, channels, 3)
        same = stride == 1 and channels_in == channels
        self.shortcut = None if same else conv(channels_in, channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        out = self.conv2(self.dropout(F.relu(self.norm2(self.conv1(active)))))
        # As in the authors' code: a shortcut with a convolution starts after the ReLU, as the branch does.
        total: Tensor = out + (x if self.shortcut is None else self.shortcut(active))
        return total


def wide_resnet(
    depth: int,
    widen_factor: int,
    num_classes: int = 10,
    channels: int = 3,
    *,
    dropout: float = 0.0,
    norm: Norm = "batch",
) -> nn.Module:
    """WRN-depth-widen_factor: three stages of (depth - 4) / 6 blocks each, widen_factor times as wide as a ResNet's.

    >>> sum(p.numel() for p in wide_resnet(40, 1).parameters())
    563930
    """
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"depth must be 6n + 4 with n >= 1 (10, 16, 22, 28, 34, 40, ...), got {depth}")
    if widen_factor < 1:
        raise ValueError(f"widen_factor must be >= 1, got {widen_factor}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {dropout}")
    layers: list[nn.Module] = [conv(channels, 16, 3)]
    channels_in = 16
    for stage in range(3):
        width = (16 << stage) * widen_factor
        for block in range((depth - 4) // 6):
            layers.append(_Block(channels_in, width, 2 if stage > 0 and block == 0 else 1, dropout, norm))
            channels_in = width
    layers += [normalisation(norm, channels_in), nn.ReLU(), *classifier(channels_in, num_classes)]
    return kaiming_init(nn.Sequential(*layers))


def wrn_28_10(num_classes: int = 10, channels: int = 3, *, dropout: float = 0.0, norm: Norm = "batch") -> nn.Module:
    """WRN-28-10: 36.5 million parameters. If the paper uses dropout, it is 0.3 on CIFAR and 0.4 on SVHN."""
    return wide_resnet(28, 10, num_classes, channels, dropout=dropout, norm=norm)


def wrn_16_4(num_classes: int = 10, channels: int = 3, *, dropout: float = 0.0, norm: Norm = "batch") -> nn.Module:
    """WRN-16-4: 2.7 million parameters."""
    return wide_resnet(16, 4, num_classes, channels, dropout=dropout, norm=norm)


def wrn_16_2(num_classes: int = 10, channels: int = 3, *, dropout: float = 0.0, norm: Norm = "batch") -> nn.Module:
    """WRN-16-2: 0.69 million parameters."""
    return wide_resnet(16, 2, num_classes, channels, dropout=dropout, norm=norm)


def wrn_10_1(num_classes: int = 10, channels: int = 3, *, dropout: float = 0.0, norm: Norm = "batch") -> nn.Module:
    """WRN-10-1, the smallest one, for CPUs: 0.08 million parameters."""
    return wide_resnet(10, 1, num_classes, channels, dropout=dropout, norm=norm)
