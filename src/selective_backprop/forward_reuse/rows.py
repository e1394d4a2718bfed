"""Which rows a gradient has, and in which dimension.

# N = examples of the batch, K = selected
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The selected examples, and where the batch is in the shape of a tensor.

    The dimension `dim` has the batch in it, alone or flattened together with others: its size is
    outer * N * inner, as when (N, T, C) is viewed as (N * T, C) or (T, N, C) as (T * N, C).
    """

    index: Tensor
    """(K,) int64 on the tensor's device, rising: the selected examples."""
    total: int
    """N."""
    dim: int = 0
    outer: int = 1
    inner: int = 1

    @property
    def whole(self) -> int:
        """Size of the dimension with all examples."""
        return self.outer * self.total * self.inner

    @property
    def part(self) -> int:
        """Size of the dimension with only the selected examples."""
        return self.outer * len(self.index) * self.inner

    def at(self, dim: int) -> Rows:
        return replace(self, dim=dim)

    def same_as(self, other: Rows) -> bool:
        """Whether two gradients have the same rows. Within a backward pass all share one index tensor."""
        places = [(rows.total, rows.dim, rows.outer, rows.inner) for rows in (self, other)]
        return self.index is other.index and places[0] == places[1]

    def sized(self, shape: list[int] | torch.Size, size: int) -> list[int]:
        """Return the shape with another size of the dimension that has the batch in it."""
        return [*shape[: self.dim], size, *shape[self.dim + 1 :]]

    def take(self, tensor: Tensor) -> Tensor:
        """Take the selected rows of a tensor that has all rows, in the same memory format."""
        if self.outer == self.inner == 1:
            if self.dim == 0 and tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
                return tensor.permute(0, 2, 3, 1).index_select(0, self.index).permute(0, 3, 1, 2)
            return tensor.index_select(self.dim, self.index)
        return self._apart(tensor, self.total).index_select(self.dim + 1, self.index).flatten(self.dim, self.dim + 2)

    def spread(self, values: Tensor) -> Tensor:
        """Return all rows, with zeros for those that are not selected."""
        whole = values.new_zeros(self.sized(values.shape, self.whole))
        self._apart(whole, self.total).index_copy_(self.dim + 1, self.index, self._apart(values, len(self.index)))
        return whole

    def _apart(self, tensor: Tensor, examples: int) -> Tensor:
        """Return a view in which the batch has its own dimension, after self.dim."""
        shape = tensor.shape
        return tensor.reshape(*shape[: self.dim], self.outer, examples, self.inner, *shape[self.dim + 1 :])

    def viewed(self, shape: list[int], sizes: list[int]) -> Rows | None:
        """Find where the batch is after a view from one shape to another; None if it is no longer in one dimension.

        >>> rows = Rows(torch.tensor([0, 2]), total=3)
        >>> seen = rows.viewed([3, 5, 4], [15, 4])
        >>> seen.dim, seen.outer, seen.inner
        (0, 1, 5)
        """
        before = math.prod(shape[: self.dim]) * self.outer  # how many times the batch is gone through
        prefix = 1
        for dim, size in enumerate(sizes):
            if before % prefix == 0 and prefix * size % (before * self.total) == 0:
                return replace(self, dim=dim, outer=before // prefix, inner=prefix * size // (before * self.total))
            prefix *= size
        return None
