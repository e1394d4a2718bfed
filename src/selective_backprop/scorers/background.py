"""One piece of work at a time beside the main thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import torch
from torch import Tensor

from selective_backprop.inference import beside_training


class Background:
    """Runs work in a thread, and on CUDA devices in streams of its own, so that training does not queue behind it."""

    def __init__(self) -> None:
        # Kept, because the memory of every stream is cached apart.
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def run(self, work: Callable[[], Tensor], devices: Iterable[torch.device]) -> Future[Tensor]:
        """Begin with work on these devices; what the main thread asked of them before is done first."""
        streams = [self._stream(device) for device in devices if device.type == "cuda"]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))

        def job() -> Tensor:
            with ExitStack() as stack:
                stack.enter_context(beside_training())
                for stream in streams:
                    stack.enter_context(torch.cuda.stream(stream))
                return work().to("cpu", torch.float32)  # waits for the stream, here and not in the main thread

        # The thread ends with its work, so that none is there when a DataLoader forks or the interpreter exits. To
        # start a new one each time takes a few tenths of a millisecond.
        pool = ThreadPoolExecutor(1, thread_name_prefix="selective_backprop")
        future = pool.submit(job)
        pool.shutdown(wait=False)
        return future

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]
