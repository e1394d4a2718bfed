"""A run is a folder: its settings, a line per epoch, checkpoints. Nothing in it is ever half-written."""

from __future__ import annotations

import fcntl
import io
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch

import selective_backprop as sb


class RunFolder:
    """Reads and writes the files of one run; one process at a time.

    Args:
        path: made if it is not there.
        settings: of the run, plain data. A folder that holds another run's is refused.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(f"{path} is a file, and a run needs a folder: choose another name")
        path.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock()
        try:
            self._claim(settings)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other processes work on it."""
        self._lock.close()

    def _claim(self, settings: dict[str, Any]) -> None:
        saved = self.read_json("config.json")
        if not (self.path / "config.json").exists():
            if (self.path / "records.jsonl").exists():  # nobody could tell whether they are of this run
                raise ValueError(f"{self.path} holds records but no config.json: put it back, or choose another folder")
            self.write_json("config.json", settings)
            self.write_json("environment.json", environment())
        elif not isinstance(saved, dict):
            raise _damaged(self.path / "config.json", "no settings in it", " with the rest of the folder")
        elif (ranks := saved.get("ranks", 1)) != settings.get("ranks", 1):
            start = f"torchrun --nproc-per-node {ranks} -m selective_backprop.lab" if ranks > 1 else "no torchrun"
            raise ValueError(
                f"{self.path} holds a run of {ranks} ranks, and here are {settings.get('ranks', 1)}: go on with it by "
                f"{start}, or choose another folder"
            )
        elif saved != settings:
            different = sorted(key for key in saved.keys() | settings.keys() if saved.get(key) != settings.get(key))
            raise ValueError(
                f"{self.path} holds a run with other settings ({', '.join(different)}): choose another folder, or give "
                "the same settings to go on with it"
            )

    def _take_lock(self) -> IO[str]:
        lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise ValueError(
                f"another process is working on {self.path}: wait for it, or choose another folder"
            ) from None
        return lock

    def read_json(self, name: str) -> Any:
        """The content of a file, or None where there is none."""
        file = self.path / name
        try:
            return json.loads(file.read_text()) if file.exists() else None
        except ValueError as error:  # no JSON, or no text at all
            raise _damaged(file, error, " with the rest of the folder") from None

    def write_json(self, name: str, content: Any) -> None:
        write_whole({self.path / name: (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()})

    def records(self) -> list[dict[str, Any]]:
        """A record per finished epoch."""
        return read_records(self.path)

    def save(self, checkpoint: dict[str, Any], records: list[dict[str, Any]]) -> None:
        """Records first: what a killed process leaves is then cut back to the checkpoint."""
        lines = "".join(json.dumps(record, sort_keys=True) + "\n" for record in records)
        # In memory first: of a full disk, torch.save says only that it came to an unexpected position.
        torch.save(checkpoint, buffer := io.BytesIO())
        write_whole({self.path / "records.jsonl": lines.encode(), self.path / "checkpoint.pt": buffer.getbuffer()})

    def checkpoint(self) -> dict[str, Any] | None:
        """What was saved last, or None."""
        file = self.path / "checkpoint.pt"
        if not file.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(file, weights_only=True)
        except OSError:
            raise
        except Exception as error:  # torch.load raises many kinds, depending on where the file stops making sense
            raise _damaged(file, error) from None
        if not isinstance(state, dict):
            raise _damaged(file, f"it holds a {type(state).__name__}")
        if (found := len(self.records())) < (needed := state.get("num_records", 0)):
            lacking = f"{found} records, but checkpoint.pt is of {needed} epochs"
            raise _damaged(self.path / "records.jsonl", lacking, " with checkpoint.pt")
        return state


def read_records(folder: Path) -> list[dict[str, Any]]:
    """A record per finished epoch of the run in this folder; no lock is needed, files are replaced as a whole."""
    file = folder / "records.jsonl"
    records = []
    for number, line in enumerate(file.read_bytes().splitlines() if file.exists() else (), start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise _damaged(file, f"line {number}: {error}", " with checkpoint.pt") from None
        if not isinstance(records[-1], dict):
            raise _damaged(file, f"line {number} is no record", " with checkpoint.pt")
    return records


def write_whole(contents: Mapping[Path, bytes | memoryview]) -> None:
    """Write files under other names, then rename them: each is whole, and none is replaced before all are written."""
    parts = {path: path.with_name(f"{path.name}.part") for path in contents}
    try:
        for path, part in parts.items():
            with part.open("wb") as file:
                file.write(contents[path])
                file.flush()
                os.fsync(file.fileno())  # or a crash of the machine could leave the new name on an empty file
        for path, part in parts.items():
            part.replace(path)
    except OSError as error:
        needed = sum(len(content) for content in contents.values())
        reason = f"{error.strerror}; {needed:,} bytes are needed, and what was there before is unchanged"
        raise OSError(error.errno, reason, str(path)) from error
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def _damaged(file: Path, reason: object, along: str = "") -> ValueError:
    return ValueError(f"{file} is damaged ({reason}): move it away{along} to start the run again")


def environment() -> dict[str, Any]:
    """Versions, hardware and the command: what is needed to make a result again."""
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "selective_backprop": sb.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": accelerator,
    }


def _commit() -> str | None:
    """Of the package's own repository, where it runs from one."""
    command = ["git", "-C", str(Path(sb.__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
