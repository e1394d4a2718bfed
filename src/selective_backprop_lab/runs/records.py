"""The folder of a run: its settings, one line per epoch, and a checkpoint. No file in it is ever half-written.

The checkpoint holds everything needed to continue the run; records.jsonl is a copy for readers.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

import selective_backprop as sb
from selective_backprop_lab.files.reading import parse_json, read_json
from selective_backprop_lab.files.sealed import read_sealed, write_sealed
from selective_backprop_lab.files.writing import write_whole

_KIND = "run 1"


class RunFolder:
    """Reads and writes the files of one run; one process at a time.

    Args:
        path: the folder; it is made if it does not exist.
        settings: settings of the run, as plain data. A folder with other settings is refused.
        data: fingerprint of the run's data (`ImageSet.fingerprint`). A folder of a run on other data is refused.
    """

    def __init__(self, path: Path, settings: dict[str, Any], data: dict[str, Any] | None = None) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(f"{path} is a file, but a run needs a folder: choose another name")
        path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path / ".lock", thread_local=False)  # one lock for all threads of the process
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"another process is working on {path}: wait for it, or choose another folder") from None
        try:
            self._claim(settings)
            if data is not None:
                self._check_data(data)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock, so that other processes can use the folder."""
        self._lock.release(force=True)

    def _claim(self, settings: dict[str, Any]) -> None:
        saved = self.read_json("config.json")
        if not (self.path / "config.json").exists():
            if (self.path / "records.jsonl").exists():  # they may belong to another run
                raise ValueError(f"{self.path} holds records but no config.json: put it back, or choose another folder")
            self.write_json("config.json", settings)
            self.write_json("environment.json", environment())
        elif not isinstance(saved, dict):
            raise _damaged(self.path / "config.json", "no settings in it")
        elif _deciding(saved) != _deciding(settings):
            different = "; ".join(_differences(_deciding(saved), _deciding(settings)))
            raise ValueError(
                f"{self.path} holds a run with other settings ({different}): choose another folder, or give the same "
                "settings to continue it"
            )

    def _check_data(self, data: dict[str, Any]) -> None:
        saved = self.read_json("data.json")
        if saved is None:
            self.write_json("data.json", data)
        elif saved != data:
            raise ValueError(
                f"{self.path} holds a run on other data, so it cannot continue: choose another folder, or put the data "
                "back as they were"
            )

    def read_json(self, name: str) -> Any:
        """The content of a file, or None if the file does not exist."""
        file = self.path / name
        try:
            return read_json(file) if file.exists() else None
        except ValueError as error:  # it is no JSON, or not even text
            raise _damaged(file, error) from None

    def write_json(self, name: str, content: Any) -> None:
        write_whole({self.path / name: (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()})

    def records(self) -> list[dict[str, Any]]:
        """One record per finished epoch. If records.jsonl is damaged, they come from the checkpoint."""
        try:
            return read_records(self.path)
        except ValueError:
            if (checkpoint := self.checkpoint()) is None:
                raise
            return list(checkpoint["records"])

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Save a checkpoint. Its "records" go to records.jsonl too.

        The checkpoint is written first, so that a run with all its records has its last weights too.
        """
        write_sealed(self.path / "checkpoint.pt", _KIND, checkpoint)
        self._write_records(checkpoint["records"])

    def checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, or None. Makes records.jsonl agree with it: a kill may have come between both."""
        file = self.path / "checkpoint.pt"
        if not file.exists():
            return None
        try:
            with read_sealed(file, _KIND) as state:
                self._write_records([check_record(record) for record in state["records"]])
        except ValueError as error:
            raise ValueError(f"{error}: move it away to start the run again") from error
        return state

    def _write_records(self, records: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(record, sort_keys=True) + "\n" for record in records)
        write_whole({self.path / "records.jsonl": lines.encode()})


def _deciding(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without defaults of the recipe that decide nothing: the run has a method and selectivity itself."""
    recipe = settings.get("recipe")
    if not isinstance(recipe, dict):
        return settings
    names = ("method", "selectivity", "options", "source")
    return settings | {"recipe": {key: value for key, value in recipe.items() if key not in names}}


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Name the settings that differ, with their values then and now.

    >>> _differences({"seed": 0, "recipe": {"epochs": 3}}, {"seed": 1, "recipe": {"epochs": 4}})
    ['epochs was 3, is 4 now', 'seed was 0, is 1 now']
    """
    found = []
    for key in sorted(before.keys() | now.keys()):
        then, given = before.get(key), now.get(key)
        if isinstance(then, dict) and isinstance(given, dict):
            found += _differences(then, given)
        elif then != given:
            found.append(f"{key} was {json.dumps(then)}, is {json.dumps(given)} now")
    return found


def read_records(folder: Path) -> list[dict[str, Any]]:
    """One record per finished epoch of the run in this folder. Needs no lock, because files are replaced as a whole."""
    file = folder / "records.jsonl"
    records = []
    for number, line in enumerate(file.read_bytes().splitlines() if file.exists() else (), start=1):
        try:
            records.append(check_record(parse_json(line)))
        except ValueError as error:
            raise _damaged(file, f"line {number}: {error}", _AGAIN) from None
    return records


def epochs_done(folder: Path) -> int:
    """How many epochs of the run in this folder are finished. Damaged records count when the run has them again."""
    try:
        return len(read_records(folder))
    except ValueError:
        return 0


_NUMBERS = ("epoch", "test_error", "offered", "scored", "trained", "skipped_before_loading", "batches", "compute")
_PHASES = ("loading", "selection", "forward", "backward", "other", "evaluation")


def check_record(record: Any) -> dict[str, Any]:
    """Return the record of an epoch. Raises ValueError for the first value that is missing or not a number."""
    if not isinstance(record, dict):
        raise ValueError(f"{record!r:.50} is no record")
    for name in _NUMBERS:
        require_number(record.get(name), name, least=1 if name == "offered" else 0)
    seconds = record.get("seconds")
    if not isinstance(seconds, dict):
        raise ValueError(f"seconds must be a number by phase, got {seconds!r:.50}")
    for phase in {*_PHASES, *seconds}:
        require_number(seconds.get(phase), f"seconds of {phase}")
    return record


def require_number(value: object, what: str, *, least: float = 0) -> None:
    """Raise ValueError unless a value from a file is a number that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{what} must be a number, got {value!r:.50}")
    # Larger integers cannot be added to floats.
    if not least <= value <= 1e300:
        raise ValueError(f"{what} must be finite and at least {least}, got {value!r:.50}")


_AGAIN = "continue the run, which writes it again from its checkpoint; without one, move it away to start the run again"
_MOVE = "move it away with the rest of the folder to start the run again"


def _damaged(file: Path, reason: object, what_to_do: str = _MOVE) -> ValueError:
    return ValueError(f"{file} is damaged ({reason}): {what_to_do}")


def environment() -> dict[str, Any]:
    """Versions, hardware and the command, so that a result can be made again."""
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "selective_backprop": sb.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": accelerator,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _cpu() -> str | None:
    """The processor's name, where the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or None


def _commit() -> str | None:
    """The commit of the package's own repository; None if the package does not run from one."""
    command = ["git", "-C", str(Path(sb.__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
