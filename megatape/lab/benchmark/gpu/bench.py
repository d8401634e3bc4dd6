"""Measurements of a part in its worker process, sent to the parent process."""

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

from megatape.lab.benchmark.gpu.results import Key, Measurement, Result
from megatape.lab.processes import MAX_ERROR_LENGTH, MAX_ERROR_LINES, lines

if TYPE_CHECKING:
    from megatape.lab.benchmark.timing import Timer

# Exit status of a process in which nothing more can be measured.
LOST = 3


class Bench:
    """Measures for a part, and sends the results to the parent process.

    Attributes:
        device: "cuda" or "cpu".
        tiny: Whether to use sizes that a CPU runs in a second.
    """

    def __init__(self, part: str, device: str, tiny: bool, skipped: set[Key], channel: IO[str]) -> None:
        """Start without results.

        Args:
            part: Name of the part.
            device: "cuda" or "cpu".
            tiny: Whether to use sizes that a CPU runs in a second.
            skipped: Keys that have a result.
            channel: File that the parent process reads.
        """
        self.device = device
        self.tiny = tiny
        self._part = part
        self._skipped = skipped
        self._channel = channel

    @cached_property
    def timer(self) -> "Timer":
        """Times actions on the device."""
        import torch

        from megatape.lab.benchmark.timing import Timer

        device = torch.device(self.device)
        if self.tiny:
            return Timer(device, 1)
        return Timer(device, 5, at_least=0.05)

    def measure(self, words: tuple[str, ...], action: Callable[[], Measurement]) -> None:
        """Record the result of an action or its failure, unless there is a result already.

        Args:
            words: Words naming the measurement.
            action: Measures.
        """
        if self.has_result(words):
            return
        self.begin(words)
        try:
            result = action()
        except Exception as error:  # noqa: BLE001 (any failure is a result)
            traceback.print_exc()
            self.fail(words, brief(error))
        else:
            self.record(words, result.to_json())
        if self.device == "cuda":
            # Free gigabytes of models before the next ones.
            gc.collect()

    def begin(self, words: tuple[str, ...]) -> None:
        """Announce a measurement, which fails if the process dies."""
        self._send({"begin": str(Key(self._part, words))})

    def record(self, words: tuple[str, ...], result: Result) -> None:
        """Record a result."""
        self._send({"key": str(Key(self._part, words))} | result)

    def fail(self, words: tuple[str, ...], message: str) -> None:
        """Record a failure. If the CUDA context is broken, exit, so that another process measures the rest."""
        self.record(words, {"error": message})
        if self.device == "cuda" and _is_context_broken():
            sys.stderr.flush()
            # CUDA cannot be shut down any more.
            os._exit(LOST)

    def has_result(self, words: tuple[str, ...]) -> bool:
        """Whether there is a result already."""
        return Key(self._part, words) in self._skipped

    def _send(self, line: dict[str, Any]) -> None:
        self._channel.write(json.dumps(line) + "\n")
        self._channel.flush()


def brief(error: BaseException) -> str:
    """Return the type and the first lines of the message of an exception."""
    first_lines = lines(f"{type(error).__name__}: {error}")[:MAX_ERROR_LINES]
    return " / ".join(first_lines)[:MAX_ERROR_LENGTH]


def _is_context_broken() -> bool:
    """Whether the CUDA context is broken, for example after an illegal memory access."""
    import torch

    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except RuntimeError:
        return True
    torch.cuda.empty_cache()
    return False
