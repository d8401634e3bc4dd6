"""Runs measurements in a worker process, sending results to the parent process."""

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

from megatape.lab.benchmark.figures.measurement import Measurement
from megatape.lab.benchmark.gpu.results import BenchmarkResult, ResultKey, ResultLine
from megatape.lab.processes import MAX_ERROR_LENGTH, MAX_ERROR_LINES, lines

if TYPE_CHECKING:
    from megatape.lab.benchmark.figures.timing import Timer

# Exit status if a process cannot measure anything more.
LOST = 3


class Bench:
    """Runs a part's measurements, and sends results to the parent process.

    Attributes:
        device: "cuda" or "cpu".
        tiny: Whether to use sizes that a CPU runs in a second.
    """

    def __init__(self, part: str, device: str, tiny: bool, skipped: set[ResultKey], channel: IO[str]) -> None:
        """Start without results.

        Args:
            part: Name of the part.
            device: "cuda" or "cpu".
            tiny: Whether to use small sizes.
            skipped: Keys with a result.
            channel: File read by the parent process.
        """
        self.device = device
        self.tiny = tiny
        self._part = part
        self._skipped = skipped
        self._channel = channel

    @cached_property
    def timer(self) -> "Timer":
        """Timer for the device."""
        import torch

        from megatape.lab.benchmark.figures.timing import Timer

        device = torch.device(self.device)
        if self.tiny:
            return Timer(device, 1)
        return Timer(device, 5, at_least=0.05)

    def measure(self, case: tuple[str, ...], action: Callable[[], Measurement]) -> None:
        """Run a measurement unless the case has a result, recording the figures that `action` returns, or its failure."""
        if self.has_result(case):
            return
        self.begin(case)
        try:
            measurement = action()
        except Exception as error:  # noqa: BLE001 (any failure is a result)
            traceback.print_exc()
            self.fail(case, brief(error))
        else:
            self.record(case, measurement)
        if self.device == "cuda":
            # Free the models, which take gigabytes, before building the next ones.
            gc.collect()

    def begin(self, case: tuple[str, ...]) -> None:
        """Announce a measurement. It fails if the process dies before recording a result."""
        self._send({"begin": str(ResultKey(self._part, case))})

    def record(self, case: tuple[str, ...], measurement: Measurement) -> None:
        """Record a case's figures."""
        self._send_result(case, BenchmarkResult(measurement.to_json()))

    def fail(self, case: tuple[str, ...], message: str) -> None:
        """Record a failure. If the CUDA context is broken, exit: another process measures the remaining cases."""
        self._send_result(case, BenchmarkResult(error=message))
        if self.device == "cuda" and _is_context_broken():
            sys.stderr.flush()
            # sys.exit would try to shut CUDA down, which is no longer possible.
            os._exit(LOST)

    def has_result(self, case: tuple[str, ...]) -> bool:
        """Whether an earlier process has measured the case."""
        return ResultKey(self._part, case) in self._skipped

    def _send_result(self, case: tuple[str, ...], result: BenchmarkResult) -> None:
        self._send(ResultLine(ResultKey(self._part, case), result).to_json())

    def _send(self, line: dict[str, Any]) -> None:
        self._channel.write(json.dumps(line) + "\n")
        self._channel.flush()


def brief(error: BaseException) -> str:
    """Return an exception's type and the first lines of its message."""
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
