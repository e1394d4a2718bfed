"""Layers that several families of networks share."""

from __future__ import annotations

from torch import Tensor, nn


def conv(channels_in: int, channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image's size at stride 1; no bias, since a normalisation follows."""
    return nn.Conv2d(channels_in, channels, size, stride, padding=size // 2, bias=False)


def normalised(channels_in: int, channels: int, size: int, stride: int = 1) -> list[nn.Module]:
    """A convolution and its BatchNorm."""
    return [conv(channels_in, channels, size, stride), nn.BatchNorm2d(channels)]


class Residual(nn.Module):
    """The sum of a branch and a shortcut.

    >>> import torch
    >>> Residual(nn.ReLU(), nn.Identity())(torch.tensor([-1.0, 2.0]))
    tensor([-1., 4.])
    """

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.branch(x) + self.shortcut(x)
        return total


def projection(channels_in: int, channels: int, stride: int) -> nn.Module:
    """Shortcut of a block: identity if shapes match, else a normalised 1x1 convolution (option B of He et al.)."""
    if stride == 1 and channels_in == channels:
        return nn.Identity()
    return nn.Sequential(*normalised(channels_in, channels, 1, stride))


def classifier(width: int, num_classes: int) -> list[nn.Module]:
    """Mean over the image, of any size, then a linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes)]


def kaiming_init(model: nn.Module) -> nn.Module:
    """Set normal weights of variance 2 / fan_out in convolutions and zero biases in linear layers. Returns the model.

    Delving Deep into Rectifiers, He et al. 2015, https://arxiv.org/abs/1502.01852.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return model
