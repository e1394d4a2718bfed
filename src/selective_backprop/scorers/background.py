"""Runs work in a background thread, one piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import torch
from torch import Tensor


class Background:
    """Runs work in a thread, and on CUDA devices in separate streams, so that training does not wait for it."""

    def __init__(self) -> None:
        # Streams are kept, because CUDA memory is cached separately for every stream.
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def run(self, work: Callable[[], Tensor], devices: Iterable[torch.device]) -> Future[Tensor]:
        """Begin to run work on these devices, after what the main thread has already queued on them."""
        streams = [self._stream(device) for device in devices if device.type == "cuda"]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))

        def job() -> Tensor:
            with ExitStack() as stack:
                for stream in streams:
                    stack.enter_context(torch.cuda.stream(stream))
                return work().to("cpu", torch.float32)  # waits for the stream here, and not in the main thread

        # The thread ends with its work, so that no thread runs when a DataLoader forks or the interpreter exits.
        # Starting a new one each time takes a few tenths of a millisecond.
        pool = ThreadPoolExecutor(1, thread_name_prefix="selective_backprop")
        future = pool.submit(job)
        pool.shutdown(wait=False)
        return future

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]
