"""What torchrun says about this process, known without importing torch."""

from __future__ import annotations

import os

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as in a shell."""


def number_of_processes() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def is_first_process() -> bool:
    """Whether this process reports for all of them."""
    return number_of_processes() == 1 or os.environ["RANK"] == "0"
