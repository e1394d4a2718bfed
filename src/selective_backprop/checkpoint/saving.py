"""Saves and loads checkpoints of a whole run, which any number of ranks can resume from.

# k = ranks that saved, M = data set
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from selective_backprop.checkpoint import folders
from selective_backprop.checkpoint.reshard import redeal, redeal_ledger
from selective_backprop.distributed.agreement import all_do, first_does
from selective_backprop.distributed.ranks import Ranks, current_ranks
from selective_backprop.files.sealed import check_large, map_large, write_large
from selective_backprop.files.signing import signed
from selective_backprop.files.writing import with_free_space
from selective_backprop.loader.selective_loader import SelectiveLoader

T = TypeVar("T")

# torch.distributed.checkpoint takes as long to import as the rest of torch: `parts` is imported where it is used.


def save_checkpoint(folder: str | os.PathLike[str], loader: SelectiveLoader, /, **parts: Any) -> None:
    """Save a run after any training step, also in the middle of an epoch. All ranks must call this.

    A new checkpoint counts only when it is complete and on the disk, and the one before is kept. So a run that is
    killed at any moment can be resumed. All ranks must use the same folder.

    A folder belongs to the first process that saves to it (rank 0 for all ranks) until that process ends. Another
    process that saves to it meanwhile waits 5 seconds and then gets a RuntimeError. Any process may load at any time.

    Args:
        folder: folder for the checkpoints of this run, and for nothing else.
        loader: the loader, which is saved with its queue, its place in the epoch and its ledger.
        parts: the model, the optimizer, a learning rate schedule, and anything else that has a state_dict of plain data
            and tensors. You choose the names.

    Raises:
        OSError: the disk is full, or cannot be written to; on all ranks, with the folder and the bytes free. The
            checkpoints before are as they were.
        RuntimeError: another process saves to this folder.
        ValueError: the folder is a file, or a single checkpoint.

    >>> import tempfile, torch, selective_backprop as sb
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
    from selective_backprop.checkpoint.parts import chunk_of, split_state

    ranks = current_ranks()

    def collect() -> dict[str, Any]:
        # No copy of the ledger, which may be half of the memory.
        state: dict[str, Any] = {"ranks": ranks.size, "loader": loader.state_to_write(), "parts": {}, "tensors": {}}
        for name, part in parts.items():
            shared, state["parts"][name] = split_state(f"parts/{name}", part)
            for key, tensor in shared.items():
                chunk = chunk_of(tensor)
                if ranks.rank == 0 or [*chunk["values"].shape] != chunk["shape"]:  # what all ranks have is written once
                    state["tensors"][key] = chunk
        return state

    state = all_do(ranks, collect)
    written = Path(first_does(ranks, lambda: str(folders.begin(Path(folder)))))
    state["saved_as"] = [written.name, ranks.rank]
    try:
        _write_on_all(ranks, written, lambda: write_large(written / _file_of(ranks.rank), state))
        _write_on_all(ranks, written, lambda: folders.commit(written) if ranks.rank == 0 else None)
    except BaseException:
        if ranks.rank == 0:
            folders.discard(written)
        raise


def load_checkpoint(folder: str | os.PathLike[str], loader: SelectiveLoader, /, **parts: Any) -> bool:
    """Resume from the newest checkpoint in the folder that can be read. All ranks must call this.

    Each checkpoint is verified by its checksums first. If it is damaged or cannot be read, there is a warning, and the
    one before it is used.

    With as many ranks as have saved, the run goes on exactly. With more or fewer, what they share stays as it is, and
    what was selected and not trained on yet, the rest of the epoch and the ledger are dealt out again: nothing is lost
    or trained on twice. Training batches of a rank may then have another size, too. So may the sampler change, as from
    shuffle=True in one process to a DistributedSampler on several: generators that only one of them has are left alone.

    If the loader or a part refuses its state, nothing is changed. No code in the files is run. A checkpoint from
    somebody else can be wrong, but it cannot do harm.

    Args:
        folder: as for `save_checkpoint`.
        loader: a loader made in the same way as in the run that saved.
        parts: the same parts as in `save_checkpoint`, under the same names.

    Returns:
        True if a checkpoint was loaded; False if there is none, as on the first start.

    Raises:
        ValueError: no checkpoint can be used, or belongs to another run; or the folder is a file, or a single
            checkpoint.
    """
    ranks, folder = current_ranks(), Path(folder)
    if ranks.rank == 0:
        folders.warn_of_others(folder)
    while True:
        problems: list[str] = []
        for number in first_does(ranks, lambda: folders.numbers(folder)):
            path = folders.path_of(folder, number)
            problem = _try_to_load(path, loader, parts, ranks)
            if problem is None:
                if problems and ranks.rank == 0:
                    warnings.warn(
                        f"going on from {path}, as newer checkpoints are damaged: {'; '.join(problems)}", stacklevel=3
                    )
                return True
            if not any(ranks.gather_plain(os.path.lexists(path))):
                break  # a process that saves has removed it just now, and there are newer ones
            problems.append(f"{path.name}: {problem}")
            folders.damaged.add(os.path.realpath(path))
        else:
            if problems:
                raise ValueError(f"no checkpoint in {folder} can be used: {'; '.join(problems)}")
            return False


# ---- reading


def _try_to_load(path: Path, loader: SelectiveLoader, parts: dict[str, Any], ranks: Ranks) -> str | None:
    """Load this checkpoint, or return why it cannot be read. Raises if it can be read but belongs to another run."""
    from selective_backprop.checkpoint.parts import fill, load_part, room_for, way_back

    every, problem = list[dict[str, Any]](), None
    try:
        every = _read(path, ranks)
    except Exception as error:  # of many kinds, depending on where a file stops making sense
        problem = str(error)
    if (first := next((one for one in ranks.gather_plain(problem) if one is not None), None)) is not None:
        return str(first)

    chunks: dict[str, list[Any]] = {}
    models = {name for name, part in parts.items() if isinstance(part, nn.Module)}

    def prepare() -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Tensor]]]:
        state = signed(_state_of_loader([saved["loader"] for saved in every], loader, ranks))
        loader.check_state_dict(state)
        own = copy.deepcopy(every[ranks.rank if len(every) == ranks.size else 0]["parts"])
        if own.keys() != parts.keys():
            raise ValueError(
                f"the checkpoint has the parts {sorted(own)}, but {sorted(parts)} were passed to load_checkpoint: pass "
                "the same parts under the same names"
            )
        for saved in every:
            for key, chunk in saved["tensors"].items():
                chunks.setdefault(key, []).append(chunk)
        rooms: list[dict[str, Tensor]] = [{}, {}]
        for name, part in parts.items():
            rooms[name in models] |= room_for(f"parts/{name}", part, own[name], chunks)
        for key, tensor in rooms[0].items():
            fill(key, tensor, chunks[key])
        return state, own, rooms

    # On all ranks, or one rank would refuse what others have loaded.
    state, own, (room, in_place) = all_do(ranks, lambda: _content_of(path, prepare))
    ways_back: list[Callable[[], Any]] = []  # of the parts that were loaded

    def load_parts() -> None:
        for name, part in parts.items():
            ways_back.append(way_back(part))
            # A model takes its buffers here, and its parameters, which are not filled yet, from itself.
            load_part(f"parts/{name}", part, in_place if name in models else room, own[name])

    try:
        # What may refuse its state comes first, while it can be undone.
        all_do(ranks, lambda: _content_of(path, load_parts))
        all_do(ranks, lambda: loader.load_state_dict(state))
        ways_back.clear()
    finally:
        for undo in reversed(ways_back):
            with suppress(Exception):  # one that refuses its own state must not keep the others from getting theirs
                undo()
    for key, tensor in in_place.items():  # parameters are read to where they are, which needs no second copy of them
        fill(key, tensor, chunks[key])
    for name in models:
        load_part(f"parts/{name}", parts[name], in_place, own[name])
    return None


def _read(path: Path, ranks: Ranks) -> list[dict[str, Any]]:
    """Read what every rank saved. The ranks that load divide the work of verifying it."""
    for file in sorted(path.glob(_file_of("*")))[ranks.rank :: ranks.size]:
        try:
            check_large(file)
        except (OSError, ValueError) as error:
            raise ValueError(f"{file.name} damaged: {error}") from error
    first = map_large(path / _file_of(0))
    every = [first, *(map_large(path / _file_of(rank)) for rank in range(1, first["ranks"]))]
    for rank, saved in enumerate(every):
        if not {"loader", "parts", "tensors"} <= saved.keys():
            raise ValueError("the state of a rank is missing")
        if saved["saved_as"] != [first["saved_as"][0], rank]:
            raise ValueError(f"{_file_of(rank)} was not saved by rank {rank} together with {_file_of(0)}")
    return every


def _content_of(path: Path, work: Callable[[], T]) -> T:
    """Run work(). What it stumbles over in a checkpoint that somebody else has written is a ValueError."""
    try:
        return work()
    except (LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"{path} cannot be loaded, and nothing was changed ({type(error).__name__}: {error})"
        ) from error


def _state_of_loader(states: list[dict[str, Any]], loader: SelectiveLoader, ranks: Ranks) -> dict[str, Any]:
    """Return the state with which this rank's loader resumes."""
    if len(states) == ranks.size:
        state = states[ranks.rank]
    else:
        here = [generator.get_state() for generator in loader.generators()]
        ledger = redeal_ledger([one["ledger"] for one in states], ranks.rank, ranks.size, loader.ledger.columns)
        state = redeal(states, ranks.rank, ranks.size, loader.batch_size, here) | {"ledger": ledger}
    # Files may be removed later, so nothing stays in them. The ledger copies its columns itself.
    ledger = state["ledger"]
    rest = copy.deepcopy({name: value for name, value in state.items() if name != "ledger"})
    return rest | {"ledger": ledger | {"writes": copy.deepcopy(ledger["writes"])} if "writes" in ledger else ledger}


# ---- files


def _file_of(rank: int | str) -> str:
    return f"rank-{rank}.pt"


def _write_on_all(ranks: Ranks, written: Path, work: Callable[[], None]) -> None:
    """Run work() on every rank. If one rank cannot write to the disk, all ranks raise the same OSError."""

    def reason() -> list[Any] | None:
        try:
            work()
        except OSError as error:
            return [error.errno, error.strerror or str(error)]
        return None

    for rank, told in enumerate(ranks.gather_plain(all_do(ranks, reason))):
        if told is not None:
            number, text = told
            where = "" if ranks.size == 1 else f" on rank {rank}"
            failure = OSError(number, f"a checkpoint cannot be written{where} ({text}); those before are as they were")
            raise with_free_space(failure, written)
