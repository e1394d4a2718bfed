"""A run is a folder: its settings, a line per epoch, checkpoints. Nothing in it is ever half-written."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
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
        if saved is None:
            self.write_json("config.json", settings)
            self.write_json("environment.json", environment())
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
        except OSError:
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
        except json.JSONDecodeError as error:
            raise ValueError(f"{file} is damaged ({error}): move it away to start the run again") from None

    def write_json(self, name: str, content: Any) -> None:
        self._replace(name, lambda part: part.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n"))

    def records(self) -> list[dict[str, Any]]:
        """A record per finished epoch."""
        file = self.path / "records.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def save(self, checkpoint: dict[str, Any], records: list[dict[str, Any]]) -> None:
        """Records first: what a killed process leaves is then cut back to the checkpoint."""
        lines = "".join(json.dumps(record, sort_keys=True) + "\n" for record in records)
        self._replace("records.jsonl", lambda part: part.write_text(lines))
        self._replace("checkpoint.pt", lambda part: torch.save(checkpoint, part))

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
            raise ValueError(f"{file} is damaged ({error}): move it away to start the run again") from None
        return state

    def _replace(self, name: str, write: Any) -> None:
        part = self.path / f"{name}.part"
        write(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())  # or a crash of the machine could leave the new name on an empty file
        part.replace(self.path / name)


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
