"""Ctrl-C while the program is still being imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as in a shell."""


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """End the process at once on Ctrl-C. For imports, where an interrupt would show as a traceback from anywhere."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, or a rank's own
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> NoReturn:
    sys.stderr.write("stopped\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)
