"""Checkpoints of a whole run, for loops that nothing else saves.

A checkpoint is a folder: a file of `torch.save` per rank, what `torch.distributed.checkpoint` writes of sharded models
and optimizers, and a manifest with the size and CRC of each file. It is written under another name, and renamed when it
is complete and on the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from selective_backprop.ranks import Ranks, all_do, current_ranks, fails_on_all, first_does

_NAME, _UNFINISHED, _MANIFEST, _SHARDED = "checkpoint-", ".unfinished", "manifest.json", "sharded"


def save_checkpoint(folder: str | os.PathLike[str], loader: Any, /, **parts: Any) -> None:
    """Save a run after any training step, also in the middle of an epoch. All ranks must call this.

    A new checkpoint counts only when it is complete and on the disk, and the one before is kept. So a run that is
    killed at any moment can be resumed. All ranks must use the same folder, and no other run may save to it.

    Args:
        folder: folder for the checkpoints of this run, and for nothing else.
        loader: the `SelectiveLoader` or `SelectiveSampler`.
        parts: the model, the optimizer, a learning rate schedule, and anything else that has a state_dict of plain data
            and tensors. You choose the names. Of a model that is the same on all ranks, and of its optimizer, rank 0
            saves the parameters.

    Raises:
        OSError: the disk is full, or cannot be written to. The checkpoints before are as they were.

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
    ranks, folder, parts = current_ranks(), Path(folder), {"the loader": loader, **parts}
    with fails_on_all(ranks):
        _check(folder, parts)
        parameters = (one for part in parts.values() for one in getattr(part, "parameters", list)())
        sharded = any(hasattr(one, "to_local") for one in parameters)  # DTensors
        state = {name: _own_state(part, parameters=not (ranks.rank or sharded)) for name, part in parts.items()}
    written = Path(first_does(ranks, lambda: str(_begin(folder))))
    try:
        all_do(ranks, lambda: _write_state(written / f"rank-{ranks.rank}.pt", state))
        if sharded:
            # It takes as long to import as the rest of torch.
            from torch.distributed.checkpoint.state_dict_saver import save

            save(_sharded(parts)[2], checkpoint_id=written / _SHARDED)
        seen = _seen_by_all(written, ranks)
        first_does(ranks, lambda: _finish(written, seen))
    finally:
        if ranks.rank == 0:  # it has another name when it is complete
            shutil.rmtree(written, ignore_errors=True)


def load_checkpoint(folder: str | os.PathLike[str], loader: Any, /, **parts: Any) -> bool:
    """Resume from the newest sound checkpoint in the folder. All ranks must call this.

    If the files of a checkpoint do not have the sizes and CRCs of its manifest, there is a warning, and the one before
    it is used. No code in the files is run. On another number of ranks than have saved, all load what rank 0 saved of
    the loader, which says whether it can go on from it, and sharded parameters are divided anew.

    Args:
        folder: as for `save_checkpoint`.
        loader: a loader or sampler made in the same way as in the run that saved.
        parts: the same parts as in `save_checkpoint`, under the same names.

    Returns:
        True if a checkpoint was loaded; False if there is none, as on the first start.

    Raises:
        ValueError: no checkpoint is sound, or it belongs to another run.
    """
    ranks, folder, parts = current_ranks(), Path(folder), {"the loader": loader, **parts}
    with fails_on_all(ranks):
        _check(folder, parts)
    path = _newest_sound(folder, ranks)
    if path is None:
        return False
    sharded = (path / _SHARDED).exists()
    with fails_on_all(ranks, "could not load a checkpoint"):
        first = own = torch.load(path / "rank-0.pt", "cpu", weights_only=True)
        if ranks.rank and len(list(path.glob("rank-*.pt"))) == ranks.size:
            own = torch.load(path / f"rank-{ranks.rank}.pt", "cpu", weights_only=True)
        if own.keys() != parts.keys():
            raise ValueError(f"{path} has the parts {sorted(own)}, and load_checkpoint was passed {sorted(parts)}")
        for name, part in parts.items():  # the loader first, which says whether the checkpoint is of this run
            if isinstance(part, nn.Module):
                first[name].update(own[name])
                part.load_state_dict(first[name], strict=not sharded)
            elif state := (first if isinstance(part, Optimizer) else own)[name]:
                part.load_state_dict(state)
    if sharded:
        from torch.distributed.checkpoint.state_dict import set_state_dict
        from torch.distributed.checkpoint.state_dict_loader import load

        models, optimizers, state = _sharded(parts)
        load(state, checkpoint_id=path / _SHARDED)
        set_state_dict(models, optimizers, model_state_dict=state["m"], optim_state_dict=state["o"])
    return True


def _check(folder: Path, parts: dict[str, Any]) -> None:
    """Raise if this is no folder of checkpoints, or a part cannot be saved."""
    if folder.is_file() or (folder / _MANIFEST).exists():
        raise ValueError(f"{folder} is not a folder of checkpoints, but a file or a single one: pass {folder.parent}")
    for name, part in parts.items():
        if not hasattr(part, "state_dict") or not hasattr(part, "load_state_dict"):
            raise TypeError(f"{name} must have state_dict and load_state_dict, got {type(part).__name__}")
        if isinstance(part, nn.Module) and any(type(m).__name__ == "FullyShardedDataParallel" for m in part.modules()):
            raise TypeError(f"{name} is sharded by FullyShardedDataParallel, which is not supported: use fully_shard")


def _own_state(part: Any, *, parameters: bool) -> dict[str, Any]:
    """Return what a rank saves of a part. parameters: also parameters, and what an optimizer keeps for them."""
    if isinstance(part, nn.Module) and not parameters:
        left_out = {name for name, _ in part.named_parameters(remove_duplicate=False)}
        return {name: value for name, value in part.state_dict().items() if name not in left_out}
    return {} if isinstance(part, Optimizer) and not parameters else part.state_dict()


# ---- sharded models and optimizers. torch.distributed.checkpoint takes as long to import as the rest of torch


def _sharded(parts: dict[str, Any]) -> tuple[nn.Module, list[Optimizer], dict[str, Any]]:
    """Return all models as one, all optimizers, and their states."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    models = nn.ModuleDict({name: part for name, part in parts.items() if isinstance(part, nn.Module)})
    optimizers = [part for part in parts.values() if isinstance(part, Optimizer)]
    return models, optimizers, dict(zip("mo", get_state_dict(models, optimizers), strict=True))


# ---- files


def _checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, the oldest first."""
    return sorted(folder.glob(f"{_NAME}????????"))


def _begin(folder: Path) -> Path:
    """Make an empty folder to write the next checkpoint to."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_NAME}*{_UNFINISHED}"):  # by a save that was killed
        shutil.rmtree(left)
    last = max((int(path.name[-8:]) for path in _checkpoints(folder)), default=0)
    written = folder / f"{_NAME}{last + 1:08}{_UNFINISHED}"
    written.mkdir()
    return written


def _write(path: Path, write_to: Any) -> None:
    with open(path, "wb") as file:
        write_to(file)
        file.flush()
        os.fsync(file.fileno())


def _write_state(path: Path, state: dict[str, Any]) -> None:
    try:
        _write(path, lambda file: torch.save(state, file))
    except RuntimeError as error:
        # torch's writer hides why it could not write behind a complaint about an unexpected position.
        raise error.__context__ or error from None
    if unsafe := torch.serialization.get_unsafe_globals_in_checkpoint(path):
        raise TypeError(f"a part's state_dict must be plain data and tensors, and one has {', '.join(unsafe)}")


def _finish(written: Path, seen: dict[str, Any]) -> None:
    """Make the folder that was written the newest checkpoint, and remove old ones."""
    _write(written / _MANIFEST, lambda file: file.write(json.dumps(seen, indent=1).encode()))
    _sync(written / _SHARDED)
    _sync(written)
    written.rename(written.with_name(written.name.removesuffix(_UNFINISHED)))
    _sync(written.parent)
    for old in _checkpoints(written.parent)[:-2]:  # the one before is kept in case the newest gets damaged
        shutil.rmtree(old, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Make new names in a folder survive a crash of the machine, where the file system can promise it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _newest_sound(folder: Path, ranks: Ranks) -> Path | None:
    damaged: list[str] = []
    for name in first_does(ranks, lambda: [str(path) for path in reversed(_checkpoints(folder))]):
        if not (wrong := _wrong(path := Path(name), _seen_by_all(path, ranks))):
            if damaged and ranks.rank == 0:
                warnings.warn(f"going on from {path}, as these files are damaged: {', '.join(damaged)}", stacklevel=3)
            return path
        damaged += [f"{path.name}/{one}" for one in wrong]
    if damaged:
        raise ValueError(f"no checkpoint in {folder} is whole. These files are damaged: {', '.join(damaged)}")
    return None


def _wrong(path: Path, seen: dict[str, Any]) -> list[str]:
    """Return the names of the files that are not as the manifest says."""
    with suppress(OSError, ValueError):
        manifest = json.loads((path / _MANIFEST).read_text())
        return [name for name in manifest if seen.get(name) != manifest[name]]
    return [_MANIFEST]


def _seen_by_all(path: Path, ranks: Ranks) -> dict[str, Any]:
    """Return size and CRC of each file of a checkpoint. The ranks divide the work."""
    names = first_does(ranks, lambda: sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()))
    own = {name: _seen(path / name) for name in names[ranks.rank :: ranks.size]}
    return {name: seen for part in ranks.gather_plain(own) for name, seen in part.items()}


def _seen(file: Path) -> list[int] | None:
    with suppress(OSError), open(file, "rb") as content:
        crc = 0
        while block := content.read(2**22):
            crc = zlib.crc32(block, crc)
        return [content.tell(), crc]
    return None
