"""Times parts of a step on a device, without waiting for the device."""

import time
from typing import Self

import torch


class Stopwatch:
    """Stopwatch for a device, used as a context manager around each part.

    Args:
        device: Device running the parts.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        # Start and end of each part on a GPU.
        self._events: list[torch.cuda.Event] = []
        # Start of the current part, and duration of all parts, on a CPU.
        self._started = 0.0
        self._total = 0.0

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        self._mark()
        return self

    def __exit__(self, *_: object) -> None:
        self._total += time.perf_counter() - self._started
        self._mark()

    def _mark(self) -> None:
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    def seconds(self) -> float:
        """Return the summed duration of all parts.

        Call it after the GPU has finished them, for example after reading a later result.
        """
        if not self._on_gpu:
            return self._total
        starts = self._events[::2]
        ends = self._events[1::2]
        return sum(start.elapsed_time(end) for start, end in zip(starts, ends, strict=True)) / 1000
