"""Checkpoints of a whole run that any number of ranks can go on from.

# k = ranks that saved, M = data set
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selective_backprop import checkpoint_files as files
from selective_backprop.agreeing import all_do, first_does, gather
from selective_backprop.checkpoint_ledger import ledger_state, whole_columns
from selective_backprop.loader import SelectiveLoader
from selective_backprop.ranks import Ranks, current_ranks
from selective_backprop.redealing import deal, redeal

# torch.distributed.checkpoint is imported where it is used: it takes as long as the rest of torch.


def save_checkpoint(folder: str | os.PathLike[str], loader: SelectiveLoader, /, **parts: Any) -> None:
    """Save a run between two steps, mid-epoch too. Every rank calls it; without several ranks it is one process.

    The newest checkpoint replaces the others only when it is complete and on the disk, and the one before is kept. So
    a run that is killed at any moment can go on. The folder has to be the same one for all ranks.

    Args:
        folder: of this run's checkpoints, and nothing else.
        loader: with its queue, its place in the epoch, its ledger.
        parts: the model, the optimizer, a learning rate schedule: modules, optimizers, and anything that has a
            state_dict of plain data and tensors; under names of your own.

    >>> import tempfile, selective_backprop as sb
    >>> model = torch.nn.Linear(2, 3)
    >>> data = [(torch.ones(2), 0), (torch.zeros(2), 1)]
    >>> loader = sb.SelectiveLoader(
    ...     torch.utils.data.DataLoader(data, batch_size=2), model, torch.nn.CrossEntropyLoss(), sb.traditional()
    ... )
    >>> folder = tempfile.mkdtemp()
    >>> load_checkpoint(folder, loader, model=model)  # False: the first start
    False
    >>> save_checkpoint(folder, loader, model=model)
    >>> load_checkpoint(folder, loader, model=model)
    True

    With `torchrun --max-restarts=3 train.py` every rank starts again when one of them fails. A script that loads
    before its loop, and saves in it now and then, goes on where it was. (Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: or
    ranks that start again may look for the dead ones, pytorch issue 135712.)

        sb.load_checkpoint("checkpoints", loader, model=model, optimizer=optimizer)
        for epoch in range(loader.epoch, num_epochs):
            for inputs, targets in loader:
                ...
                if loader.stats.batches % 100 == 0:
                    sb.save_checkpoint("checkpoints", loader, model=model, optimizer=optimizer)
    """
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    from selective_backprop.checkpoint_parts import pack

    ranks = current_ranks()

    def collect() -> tuple[dict[str, Tensor], dict[str, Any]]:
        state = loader.state_dict()
        tensors = whole_columns(state["ledger"], ranks, len(loader.ledger))
        own: dict[str, Any] = {"parts": {}}
        # What was not delivered yet stays so: saving must not change in which order it is.
        own["loader"] = state | {"ledger": {"writes": state["ledger"].get("writes", [])}}
        for name, part in parts.items():
            shared, own["parts"][name] = pack(f"parts/{name}", part)
            tensors |= shared
        return tensors, own

    tensors, own = all_do(ranks, collect)
    written = Path(first_does(ranks, lambda: str(files.begin(Path(folder)))))
    all_do(ranks, lambda: _write(written / _file_of(ranks.rank if ranks is not None else 0), own))
    with _quietly():
        save(tensors, storage_writer=FileSystemWriter(written), process_group=_group(ranks))
    names = first_does(ranks, lambda: sorted(file.name for file in written.iterdir()))
    checksums = all_do(ranks, lambda: {name: files.checksum(written / name) for name in _share(names, ranks)})
    all_checksums = {name: text for part in gather(ranks, checksums) for name, text in part.items()}
    first_does(ranks, lambda: files.commit(written, all_checksums))


def load_checkpoint(folder: str | os.PathLike[str], loader: SelectiveLoader, /, **parts: Any) -> bool:
    """Go on from the newest checkpoint in the folder that is not damaged. Every rank calls it.

    With as many ranks as have saved, the run goes on exactly. With more or fewer, what they share stays as it is, and
    what was selected and not trained on yet, the rest of the epoch and the ledger are dealt out again: nothing is lost
    or trained on twice. Training batches of a rank may then have another size, too.

    Nothing in the files is run as code; a checkpoint from a stranger can do no worse than to be wrong.

    Args:
        folder: as for `save_checkpoint`.
        loader: made as for the run that saved.
        parts: the same, under the same names.

    Returns:
        Whether there was a checkpoint; False on the first start.
    """
    from torch.distributed.checkpoint.state_dict_loader import load

    from selective_backprop.checkpoint_parts import make_room, unpack
    from selective_backprop.safe_reading import SafePlanner, SafeReader

    ranks = current_ranks()
    path = _newest_intact(Path(folder), ranks)
    if path is None:
        return False
    reader = SafeReader(path, set(files.checksums_of(path)))

    def read(tensors: dict[str, Tensor]) -> None:
        with _quietly():
            load(tensors, storage_reader=reader, planner=SafePlanner(), process_group=_group(ranks))

    def prepare() -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
        saved: dict[str, Any] = dict(reader.read_metadata().state_dict_metadata)
        state, own = _own_state(path, loader, ranks)
        if own.keys() != parts.keys():
            raise ValueError(f"the checkpoint has {sorted(own)}, asked for were {sorted(parts)}")
        columns = whole_columns(loader.ledger.state_dict(), ranks, len(loader.ledger))
        for name, column in columns.items():
            if name not in saved or saved[name].size != column.shape:
                there = tuple(saved[name].size) if name in saved else "missing"
                raise ValueError(
                    f"{name} is {there} in the checkpoint and {tuple(column.shape)} here: was it saved for another "
                    "data set or method, or has this one changed?"
                )
        room: dict[str, Tensor] = {}
        for name, part in parts.items():
            room |= make_room(f"parts/{name}", part, own[name], saved)
        return state, own, columns, room

    state, own, columns, room = all_do(ranks, prepare)
    read(columns)
    state["ledger"] = ledger_state(loader.ledger.state_dict(), columns, state["ledger"]["writes"])
    all_do(ranks, lambda: loader.load_state_dict(state))
    read(room)
    for name, part in parts.items():
        unpack(f"parts/{name}", part, room, own[name])
    return True


# ---- files


def _newest_intact(folder: Path, ranks: Ranks | None) -> Path | None:
    """The newest checkpoint whose files are as they were written; None where there is none at all."""
    problems: list[str] = []
    for number in first_does(ranks, lambda: files.numbers(folder)):
        path = files.path_of(folder, number)
        try:
            expected = files.checksums_of(path)
            names = files.damaged(path, expected, _share(sorted(expected), ranks))
            problem = f"{', '.join(names)} damaged" if names else None
        except ValueError as error:
            problem = str(error)
        found = [text for text in gather(ranks, problem) if text is not None]
        if not found:
            if problems and (ranks is None or ranks.rank == 0):
                warnings.warn(
                    f"going on from {path}, as newer checkpoints are damaged: {'; '.join(problems)}", stacklevel=3
                )
            return path
        problems.append(f"{path.name}: {found[0]}")
    if problems:
        raise ValueError(f"no checkpoint in {folder} can be used: {'; '.join(problems)}")
    return None


def _own_state(path: Path, loader: SelectiveLoader, ranks: Ranks | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """With what the loader of this rank goes on, and the other parts."""
    rank, size = (0, 1) if ranks is None else (ranks.rank, ranks.size)
    names = files.checksums_of(path)
    num_saved = sum(_file_of(i) in names for i in range(len(names)))
    if num_saved == size:
        saved = _read(path / _file_of(rank))
        return saved["loader"], saved["parts"]
    every = [_read(path / _file_of(i)) for i in range(num_saved)]
    states = [saved["loader"] for saved in every]
    state = redeal(states, rank, size, loader.batch_size)
    writes = [write for other in states for write in other["ledger"]["writes"]]
    return state | {"ledger": {"writes": deal(writes, size)[rank]}}, every[0]["parts"]


def _file_of(rank: int) -> str:
    return f"rank-{rank}.pt"


def _write(path: Path, value: Any) -> None:
    with path.open("wb") as file:
        torch.save(value, file)
        file.flush()
        files.sync(file.fileno())


def _read(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _share(names: list[str], ranks: Ranks | None) -> list[str]:
    """The files that this rank checks."""
    return names if ranks is None else names[ranks.rank :: ranks.size]


# ---- torch.distributed.checkpoint


def _group(ranks: Ranks | None) -> Any:
    return None if ranks is None else ranks.group


@contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)  # one process is what is meant
        yield
