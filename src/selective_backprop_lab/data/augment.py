"""Normalisation and augmentation of whole batches of images, on the batch's device.

# B = batch, C = channels, H, W = height and width
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_CHUNK_VALUES = 2**24  # memory-mapped pixel values to hold in memory at a time


def measure_mean_std(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images (N, C, H, W), on the scale from 0 to 1.

    It counts pixels by value, so the sums are exact for any number of pixels.

    >>> measure_mean_std(torch.tensor([0, 255, 255, 0], dtype=torch.uint8).view(2, 1, 1, 2))
    ((0.5,), (0.5,))
    """
    channels = images.shape[1]
    counts = torch.zeros(channels, 256, dtype=torch.int64)
    for chunk in torch.split(images, max(1, _CHUNK_VALUES // images[0].numel())):
        for channel in range(channels):
            counts[channel] += torch.bincount(chunk[:, channel].flatten(), minlength=256).cpu()
    share = counts.double() / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ values
    std = (share * (values - mean[:, None]).square()).sum(1).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())


class Normalise(nn.Module):
    """(images - mean) / std per channel, in float, of a batch of uint8 images.

    A module without parameters, so that it can be the first layer of a network that takes uint8 images.

    Args:
        mean, std: one number per channel, on the scale from 0 to 1, as `measure_mean_std` returns them.

    >>> Normalise([0.5], [0.25])(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2))
    tensor([[[[-2.,  2.]]]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if not all(value > 0 for value in std):
            raise ValueError(f"std must be > 0 in every channel, got {std}: a constant channel cannot be normalised")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        # In place on the new tensor: one allocation for the batch.
        return images.float().div_(255 * self.std).sub_(self.mean / self.std)


class Augment:
    """Random crop from the padded image, random horizontal flip, and cutout, drawn separately for each example.

    It takes batches (B, C, H, W) of uint8 or float.

    Random numbers come from its own generator on the CPU, so a seed gives the same result on every device. If all three
    are off, it returns the batch itself.

    Padding and cutout fill with zero, which is black in uint8 images and the mean in normalised ones. DeVries and
    Taylor normalise first.

    Args:
        padding: pixels by which the crop can move to each side; 0 switches cropping off.
        flip: mirror each image with chance 1/2.
        cutout: side of a square of zeros; 0 for none. Its centre is uniform over the image, so the border may cut it.
            DeVries and Taylor 2017 use 16 for CIFAR-10, 8 for CIFAR-100 and 20 for SVHN.
        seed: seed of the generator.

    >>> augment = Augment(padding=0, flip=True, seed=1)
    >>> augment(torch.arange(3.0).expand(4, 1, 1, 3)).flatten(1)
    tensor([[2., 1., 0.],
            [0., 1., 2.],
            [0., 1., 2.],
            [2., 1., 0.]])
    """

    def __init__(self, *, padding: int = 4, flip: bool = True, cutout: int = 0, seed: int = 0) -> None:
        for name, value in (("padding", padding), ("cutout", cutout)):
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a whole number of pixels, 0 or more, got {value!r}")
        self.padding, self.flip, self.cutout = padding, flip, cutout
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, images: Tensor) -> Tensor:
        size, channels, height, width = images.shape
        if not (self.padding or self.flip or self.cutout):
            return images
        ranges = (2 * self.padding + 1, 2 * self.padding + 1, 1 + self.flip, *((height, width) if self.cutout else ()))
        drawn = [torch.randint(most, (size, 1), generator=self.generator) for most in ranges]
        top, left, mirrored, *centre = torch.stack(drawn).to(images.device, non_blocking=True)  # one transfer
        if self.padding:
            images = F.pad(images, (self.padding,) * 4)
        row, column = (torch.arange(length, device=images.device) for length in (height, width))
        rows = row + top  # (B, H): where each row of the result comes from, in the padded image
        columns = torch.where(mirrored.bool(), column.flip(0), column) + left
        positions = rows[:, :, None] * images.shape[3] + columns[:, None, :]
        index = positions.view(size, 1, height * width).expand(-1, channels, -1)
        crops = images.flatten(2).gather(2, index).view(size, channels, height, width)
        if self.cutout:
            hole = _near(row, centre[0], self.cutout)[:, :, None] & _near(column, centre[1], self.cutout)[:, None, :]
            crops.masked_fill_(hole[:, None], 0)
        return crops

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])


def _near(positions: Tensor, centre: Tensor, length: int) -> Tensor:
    """(B, positions) bool: whether a position is in the interval of this length around the centre."""
    offset = positions - centre + length // 2
    return (offset >= 0) & (offset < length)
