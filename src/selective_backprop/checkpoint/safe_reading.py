"""Reads files of torch.distributed.checkpoint without running any code that is in them.

Its description of a checkpoint, `.metadata`, is a pickle, and so is everything in it that is not a tensor; torch 2.13
reads both by an unpickler that may call anything. Here nothing but tensors is written, the description is read by an
unpickler that knows its classes and no others, and a value that claims to be something else is refused.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import os
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata


class Refused(pickle.UnpicklingError):
    """A file contains something that this package does not write."""


class _DescriptionReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == metadata.__name__:
            found = getattr(metadata, name, None)
            if isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, enum.Enum)):
                return found
        if module == "torch":
            found = getattr(torch, name, None)
            if isinstance(found, (torch.dtype, torch.layout)) or found is torch.Size:
                return found
        if (module, name) == ("torch.distributed.checkpoint.filesystem", "_StorageInfo"):
            return super().find_class(module, name)
        if (module, name) == ("torch.serialization", "_get_layout"):
            return lambda layout: torch.strided  # of the tensors written here, all are
        if module.split(".")[0] == "pathlib":
            return lambda *parts: "/".join(parts)  # where it was saved, which is of no interest
        raise Refused(f"the checkpoint's description asks for {module}.{name}: it is damaged or was tampered with")


class SafeReader(FileSystemReader):
    """Reads tensors, only from known files of the checkpoint.

    Args:
        path: folder of the checkpoint.
        files: names of the files that may be read.
    """

    def __init__(self, path: str | os.PathLike[str], files: set[str]) -> None:
        super().__init__(path)
        self._files = files

    def read_metadata(self) -> Metadata:  # without the base's arguments, which would read other files
        with open(os.path.join(self.path, ".metadata"), "rb") as file:
            description = _DescriptionReader(file).load()
        if not isinstance(description, Metadata):
            raise Refused(f"the checkpoint's description is a {type(description).__name__}")
        for name, entry in description.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise Refused(f"{name} in the checkpoint is not a tensor")
        for place in description.storage_data.values():
            if place.relative_path not in self._files:
                raise Refused(
                    f"the checkpoint's description refers to {place.relative_path!r}, which is not part of it"
                )
        return description


class SafePlanner(DefaultLoadPlanner):
    """Accepts only tensors. The base class would unpickle other values."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        raise Refused(f"{read_item.dest_index.fqn} in the checkpoint is not a tensor")
