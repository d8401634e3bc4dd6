"""Worker process of one part: runs `main` with NAME TARGET DEVICE tiny|full.

The first line of standard input is the JSON list of keys to skip; when it ends, so does the process. To standard output go the
lines that runner.py reads, and nothing else: {"begin": KEY}, then {"key": KEY, ...}.
"""

import gc
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import cached_property
from pkgutil import resolve_name
from typing import IO, TYPE_CHECKING, Any

from megatape.lab.benchmark.results import Result
from megatape.lab.processes import ERROR_LENGTH, ERROR_LINES, lines

if TYPE_CHECKING:
    from megatape.lab.benchmark.timing import Timer

TINY = "tiny"
LOST = 3  # exit status: nothing more can be measured in this process


class Bench:
    """Measures for a part, and sends its results to the process that started it.

    Attributes:
        device: "cuda" or "cpu".
        tiny: Use sizes that a CPU runs in a second.
    """

    def __init__(self, part: str, device: str, tiny: bool, skipped: set[str], channel: IO[str]) -> None:
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

        return Timer(torch.device(self.device), 1) if self.tiny else Timer(torch.device(self.device), 5, at_least=0.05)

    def measure(self, name: str, action: Callable[[], Result]) -> None:
        """Keep what the action returns, or that it failed, unless there is a result already."""
        if self.has_result(name):
            return
        self.begin(name)
        try:
            result = action()
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the result)
            traceback.print_exc()
            self.fail(name, brief(error))
        else:
            self.record(name, result)
        if self.device == "cuda":
            gc.collect()  # models of gigabytes, before the next ones

    def begin(self, name: str) -> None:
        """If the process dies now, this failed."""
        self._send({"begin": self._key(name)})

    def record(self, name: str, result: Result) -> None:
        """Keep a result."""
        self._send({"key": self._key(name)} | result)

    def fail(self, name: str, message: str) -> None:
        """Keep a failure. One after which CUDA refuses to work ends the process, and another process measures the rest."""
        self.record(name, {"error": message})
        if self.device == "cuda" and _broken():
            sys.stderr.flush()
            os._exit(LOST)  # nothing of CUDA can be shut down any more

    def has_result(self, name: str) -> bool:
        """Whether there is a result already."""
        return self._key(name) in self._skipped

    def _key(self, name: str) -> str:
        return f"{self._part}/{name}"

    def _send(self, line: dict[str, Any]) -> None:
        self._channel.write(json.dumps(line) + "\n")
        self._channel.flush()


def brief(error: BaseException) -> str:
    """Type and first lines of an exception's message."""
    return " / ".join(lines(f"{type(error).__name__}: {error}")[:ERROR_LINES])[:ERROR_LENGTH]


def _broken() -> bool:
    """Whether CUDA refuses to work, as it does after a kernel has read or written what is not its own."""
    import torch

    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except RuntimeError:
        return True
    torch.cuda.empty_cache()
    return False


def _end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin: Python could not close it while a thread reads
        pass
    os.killpg(0, signal.SIGKILL)  # this process and those that it started


def main(words: list[str]) -> None:
    """Measure a part.

    Args:
        words: Name, target (`MODULE:FUNCTION`) and device of the part, and TINY or "full".
    """
    part, target, device, size = words
    channel = os.fdopen(os.dup(1), "w")  # which child processes do not inherit
    os.dup2(2, 1)  # what libraries print belongs in the log
    skipped = set(json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    resolve_name(target)(Bench(part, device, size == TINY, skipped, channel))
