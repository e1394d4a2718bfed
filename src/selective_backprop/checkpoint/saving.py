"""Saves and loads checkpoints of a whole run, which any number of ranks can resume from.

# k = ranks that saved, M = data set
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from selective_backprop.checkpoint import folders
from selective_backprop.checkpoint.reshard import deal, redeal
from selective_backprop.distributed.agreement import all_do, first_does
from selective_backprop.distributed.messages import gather
from selective_backprop.distributed.ranks import Ranks, current_ranks
from selective_backprop.files import states
from selective_backprop.files.reading import read_bytes
from selective_backprop.files.signing import signed
from selective_backprop.files.writing import with_free_space, write_whole
from selective_backprop.loader.selective_loader import SelectiveLoader

T = TypeVar("T")

# torch.distributed.checkpoint takes as long to import as the rest of torch: what needs it is imported where it is used.


def save_checkpoint(folder: str | os.PathLike[str], loader: SelectiveLoader, /, **parts: Any) -> None:
    """Save a run after any training step, also in the middle of an epoch. All ranks must call this.

    A new checkpoint counts only when it is complete and on the disk, and the one before is kept. So a run that is
    killed at any moment can be resumed. All ranks must use the same folder.

    A folder belongs to the first process that saves to it (rank 0 for all ranks) until that process ends or its loader
    is deleted. Another process that saves to it meanwhile waits 5 seconds and then gets a RuntimeError. Any process
    may load at any time.

    Args:
        folder: folder for the checkpoints of this run, and for nothing else.
        loader: the loader, which is saved with its queue, its place in the epoch and its ledger.
        parts: the model, the optimizer, a learning rate schedule, and anything else that has a state_dict of plain data
            and tensors. You choose the names.

    Raises:
        OSError: the disk is full, or cannot be written to; on all ranks, with the folder and the bytes free. The
            checkpoints before are as they were.
        RuntimeError: another process saves to this folder.

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
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    from selective_backprop.checkpoint.parts import split_state, whole_columns

    ranks = current_ranks()

    def collect() -> tuple[dict[str, Tensor], dict[str, Any]]:
        state = loader.state_to_write()  # no copy of the ledger, which may be half of the memory
        tensors = whole_columns(state["ledger"], ranks, len(loader.ledger))
        own: dict[str, Any] = {"parts": {}}
        # What was not delivered yet stays so: saving must not change in which order it is.
        own["loader"] = state | {"ledger": {"writes": state["ledger"].get("writes", [])}}
        for name, part in parts.items():
            shared, own["parts"][name] = split_state(f"parts/{name}", part)
            tensors |= shared
        return tensors, own

    tensors, own = all_do(ranks, collect)
    written = Path(first_does(ranks, lambda: str(folders.begin(Path(folder), loader))))
    try:
        _write_on_all(ranks, written, lambda: write_whole({written / _file_of(ranks.rank): states.pack(own)}))
        with _quietly():
            _write_on_all(
                ranks,
                written,
                lambda: save(tensors, storage_writer=FileSystemWriter(written), process_group=ranks.group),
            )
        names = first_does(ranks, lambda: sorted(file.name for file in written.iterdir()))
        checksums = _write_on_all(
            ranks, written, lambda: {name: folders.checksum(written / name) for name in _share(names, ranks)}
        )
        all_checksums = {name: text for part in gather(ranks, checksums) for name, text in part.items()}
        _write_on_all(ranks, written, lambda: folders.commit(written, all_checksums) if ranks.rank == 0 else None)
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
            if not any(gather(ranks, os.path.lexists(path))):
                break  # a process that saves has removed it just now, and there are newer ones
            problems.append(f"{path.name}: {problem}")
        else:
            if problems:
                raise ValueError(f"no checkpoint in {folder} can be used: {'; '.join(problems)}")
            return False


# ---- reading


def _try_to_load(path: Path, loader: SelectiveLoader, parts: dict[str, Any], ranks: Ranks) -> str | None:
    """Load this checkpoint, or return why it cannot be read. Raises if it can be read but belongs to another run."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load

    from selective_backprop.checkpoint.parts import current_state, ledger_state, load_part, room_for, whole_columns
    from selective_backprop.checkpoint.safe_reading import SafePlanner, SafeReader

    reader, saved, every = SafeReader(path, set()), dict[str, Any](), list[dict[str, Any]]()
    problem: str | None = None
    num_saved = 0
    try:
        expected = folders.checksums_of(path)
        if names := folders.damaged(path, expected, _share(sorted(expected), ranks)):
            raise ValueError(f"{', '.join(names)} damaged")
        reader = SafeReader(path, set(expected))
        saved = dict(reader.read_metadata().state_dict_metadata)
        num_saved = sum(_file_of(i) in expected for i in range(len(expected)))
        every = _states(path, num_saved, ranks)
    except Exception as error:  # of many kinds, depending on where a file stops making sense
        problem = str(error) or type(error).__name__
    if (first := _first(gather(ranks, problem))) is not None:
        return str(first)

    models = {name for name, part in parts.items() if isinstance(part, nn.Module)}

    def prepare() -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor], list[dict[str, Tensor]]]:
        state, own = _own_state(every, num_saved, loader, ranks)
        if own.keys() != parts.keys():
            raise ValueError(
                f"the checkpoint has the parts {sorted(own)}, but {sorted(parts)} were passed to load_checkpoint: pass "
                "the same parts under the same names"
            )
        columns = whole_columns(loader.ledger.state_dict(copy=False), ranks, len(loader.ledger), empty=True)
        for name, column in columns.items():
            if name not in saved or saved[name].size != column.shape:
                there = tuple(saved[name].size) if name in saved else "missing"
                raise ValueError(
                    f"{name} is {there} in the checkpoint and {tuple(column.shape)} here: was it saved for another "
                    "data set or method, or has this one changed?"
                )
        rooms: list[dict[str, Tensor]] = [{}, {}]
        for name, part in parts.items():
            rooms[name in models] |= room_for(f"parts/{name}", part, own[name], saved)
        return state, own, columns, rooms

    def read(tensors: dict[str, Tensor]) -> None:
        with _quietly():
            load(tensors, storage_reader=reader, planner=SafePlanner(), process_group=ranks.group)

    state, own, columns, (room, in_place) = all_do(ranks, lambda: _content_of(path, prepare))

    def whole_state() -> dict[str, Any]:
        whole = signed(state | {"ledger": ledger_state(loader.ledger, columns, state["ledger"]["writes"])})
        loader.check_state_dict(whole)
        return whole

    before: list[tuple[Any, Any]] = []  # parts that were loaded, and their states until then

    def load_parts() -> None:
        for name, part in parts.items():
            if name not in models:
                before.append((part, current_state(part)))
                load_part(f"parts/{name}", part, room, own[name])

    try:
        read(columns)
        # On all ranks, or one rank would refuse what others have loaded.
        state = all_do(ranks, lambda: _content_of(path, whole_state))
        read(room)
        # What may refuse its state comes first, while it can be undone.
        all_do(ranks, lambda: _content_of(path, load_parts))
        all_do(ranks, lambda: loader.load_state_dict(state))
        before.clear()
        read(in_place)  # last, as parameters are read to where they are, which needs no second copy of them
    except CheckpointException as error:  # raised on all ranks
        return f"its tensors cannot be read ({_reason(error)[1]})"
    finally:
        for part, state_before in reversed(before):
            with suppress(Exception):  # one that refuses its own state must not keep the others from getting theirs
                part.load_state_dict(state_before)
    for name in models:
        load_part(f"parts/{name}", parts[name], in_place, own[name])
    return None


def _content_of(path: Path, work: Callable[[], T]) -> T:
    """Run work(). What it stumbles over in a checkpoint that somebody else has written is a ValueError."""
    try:
        return work()
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} cannot be loaded, and nothing was changed ({type(error).__name__}: {error})"
        ) from error


def _first(problems: list[Any]) -> Any:
    """Return the first problem of any rank; None if there is none."""
    return next((problem for problem in problems if problem is not None), None)


def _states(path: Path, num_saved: int, ranks: Ranks) -> list[dict[str, Any]]:
    """Read the states that ranks saved for themselves: only this rank's if equally many resume, else all of them."""
    rank, size = ranks.rank, ranks.size
    if num_saved == 0:
        raise ValueError(f"{_file_of(0)} is missing")
    read = [rank] if num_saved == size else range(num_saved)
    every = [states.unpack(read_bytes(path / _file_of(i))) for i in read]
    for saved in every:
        if not isinstance(saved, dict) or not {"loader", "parts"} <= saved.keys():
            raise ValueError("the state of a rank is missing")
    return every


def _own_state(
    every: list[dict[str, Any]], num_saved: int, loader: SelectiveLoader, ranks: Ranks
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the states with which this rank's loader and its other parts resume. every: the result of `_states`."""
    rank, size = ranks.rank, ranks.size
    loaders = [saved["loader"] for saved in every]
    if num_saved == size:
        return loaders[0], every[0]["parts"]
    here = [generator.get_state() for generator in loader.generators()]
    state = redeal(loaders, rank, size, loader.batch_size, here)
    writes = [write for other in loaders for write in other["ledger"]["writes"]]
    return state | {"ledger": {"writes": deal(writes, size)[rank]}}, every[0]["parts"]


# ---- files


def _file_of(rank: int) -> str:
    return f"rank-{rank}.pt"


def _write_on_all(ranks: Ranks, written: Path, work: Callable[[], T]) -> T:
    """Run work() on every rank. If one rank cannot write to the disk, all ranks raise the same OSError."""
    from torch.distributed.checkpoint.api import CheckpointException

    result, failure = None, None
    try:
        result = work()
    except (Exception, CheckpointException) as error:  # the second is none of the first
        failure = error
    told = gather(ranks, None if failure is None else _reason(failure))
    for rank, reason in enumerate(told):
        if reason is None:
            continue
        number, text, of_disk = reason
        where = "" if ranks.size == 1 else f" on rank {rank}"
        if not of_disk:
            raise RuntimeError(f"a checkpoint cannot be written to {written.parent}{where}: {text}") from failure
        told_plainly = f"a checkpoint cannot be written{where} ({text}); those before are as they were"
        raise with_free_space(OSError(number, told_plainly), written) from failure
    return result  # type: ignore[return-value]  # there was no failure


def _reason(error: BaseException) -> tuple[int | None, str, bool]:
    """Return the number and the text of the original error behind an error, and whether it was a disk error."""
    from torch.distributed.checkpoint.api import CheckpointException

    while isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    behind: BaseException | None = error
    while behind is not None:  # torch's writer hides it behind errors of its own
        if isinstance(behind, OSError):
            return behind.errno, behind.strerror or str(behind), True
        behind = behind.__cause__ or behind.__context__
    text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None, text, "unexpected pos" in str(error) or "PytorchStreamWriter" in str(error)


def _share(names: list[str], ranks: Ranks) -> list[str]:
    """Return the files that this rank checks."""
    return names[ranks.rank :: ranks.size]


# ---- torch.distributed.checkpoint


@contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)  # one process is what is meant
        yield
