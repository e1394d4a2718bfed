"""Reads candidates from the data of Keras' users: arrays, whose rows have ids, or a PyDataset, which has no ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from selective_backprop.inference import preserved_rng
from selective_backprop.types import Batch


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """Convert to an array that shares memory if possible. np.memmap stays on disk."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def to_tensor(value: Any) -> Tensor:
    """Convert to a tensor on the CPU. Floats get Keras' precision, as in Keras' own array adapter."""
    array = to_numpy(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"cannot select from an array of {array.dtype}: make it numbers first, as with keras.layers.StringLookup"
        )
    if array.dtype.kind == "f":
        array = array.astype(keras.config.floatx(), copy=False)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _num_rows(arrays: Any) -> int:
    lengths = {len(array) if array.ndim else None for array in keras.tree.flatten(arrays)}
    if len(lengths) != 1 or None in lengths:
        shapes = keras.tree.map_structure(lambda array: array.shape, arrays)
        raise ValueError(f"x, y and sample_weight need one row per example, got shapes {shapes}")
    return int(lengths.pop() or 0)


class Rows(Dataset[Any]):
    """A data set of arrays, in tuples and dicts as the user gave them. A row number is an id."""

    def __init__(self, data: Any) -> None:
        self._arrays = keras.tree.map_structure(to_numpy, data)
        self._length = _num_rows(self._arrays)
        if not self._length:
            raise ValueError("x is empty: there is nothing to train on")
        self.__getitems__([0])  # what cannot be converted is found now

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> Any:
        """Return all rows of a batch at once. torch's DataLoader uses this if it is there."""
        return keras.tree.map_structure(lambda array: to_tensor(array[indices]), self._arrays)


def example(source: DataLoader[Any] | PyDatasetBatches) -> Batch:
    """Return a batch to look at, without training on it."""
    data = source.first if isinstance(source, PyDatasetBatches) else source.dataset[0]
    size = len(keras.tree.flatten(data)[0])
    return Batch(data, None, torch.ones(size), torch.ones(size, dtype=torch.float64))


def candidates_of(
    data: tuple[Any, Any, Any],
    *,
    batch_size: int | None,
    candidate_batch_size: int | None,
    shuffle: bool,
    seed: int,
    drop_last: bool,
) -> tuple[DataLoader[Any] | PyDatasetBatches, int | None]:
    """Read the arguments of SelectiveDataset about data.

    Returns a loader of candidates, and the size of training batches (None if it is that of candidate batches).
    """
    x, y, sample_weight = data
    if isinstance(x, keras.utils.PyDataset):
        if y is not None or sample_weight is not None:
            raise ValueError("y and sample_weight come from the PyDataset: leave them out")
        if candidate_batch_size is not None:
            raise ValueError("the PyDataset's own batches are the candidates: leave out candidate_batch_size")
        return PyDatasetBatches(x, shuffle, seed, drop_last=drop_last), batch_size
    if y is None:
        raise ValueError("examples are scored by their loss, which needs y=; for an autoencoder y=x")
    columns: tuple[Any, ...] = (x, y) if sample_weight is None else (x, y, sample_weight)
    batch_size = 32 if batch_size is None else batch_size
    size = candidate_batch_size or batch_size
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(
        Rows(columns), size, shuffle=shuffle, collate_fn=_as_is, generator=generator, drop_last=drop_last
    )
    # If the sizes are the same, batches pass as they are as long as everything is kept.
    return loader, None if candidate_batch_size in (None, batch_size) else batch_size


def _as_is(batch: Any) -> Any:
    return batch


class PyDatasetBatches:
    """Yields the batches of a PyDataset. Their order depends only on the seed, and it can resume at any batch."""

    def __init__(self, dataset: keras.utils.PyDataset, shuffle: bool, seed: int, *, drop_last: bool = False) -> None:
        if dataset.workers > 1 or dataset.use_multiprocessing:
            raise ValueError(
                "candidates are loaded in the order in which they are scored, in the process that trains: make the "
                f"PyDataset with workers=1 and use_multiprocessing=False, got {dataset.workers} and "
                f"{dataset.use_multiprocessing}"
            )
        if not dataset.num_batches:
            raise ValueError(f"the PyDataset needs a number of batches, above 0, got {dataset.num_batches}")
        self.dataset = dataset
        self.shuffle = shuffle
        self.drop_last = drop_last  # what is selected and fills no batch; the PyDataset's own batches all come
        self.generator = torch.Generator().manual_seed(seed)
        self._order = torch.empty(0, dtype=torch.int64)
        self._position = 0
        self._resumed = False
        with preserved_rng(torch.device("cpu")):
            self.first = self._batch(0)  # what cannot work is found now
        self.batch_size = len(keras.tree.flatten(self.first)[0])

    def __len__(self) -> int:
        return int(self.dataset.num_batches)

    def __iter__(self) -> Iterator[Any]:
        if not self._resumed:
            self.dataset.on_epoch_begin()
            count = len(self)
            self._order = torch.randperm(count, generator=self.generator) if self.shuffle else torch.arange(count)
            self._position = 0
        self._resumed = False
        while self._position < len(self._order):
            batch = self._batch(int(self._order[self._position]))
            self._position += 1
            yield batch
        self.dataset.on_epoch_end()

    def _batch(self, index: int) -> Any:
        return keras.tree.map_structure(to_tensor, _checked(self.dataset[index]))

    def state_dict(self) -> dict[str, Any]:
        return {"order": self._order.clone(), "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order, self._position, self._resumed = state["order"], state["position"], True


def _checked(batch: Any) -> tuple[Any, ...]:
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise TypeError(
            f"the PyDataset's batches have to be (x, y) or (x, y, sample_weight), got {type(batch).__name__}"
            + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else "")
        )
    return tuple(batch)
