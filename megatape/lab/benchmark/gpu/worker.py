"""Worker process: `main` is called with DEVICE tiny|full NAME MODULE ARGUMENT ...

Standard input starts with a JSON list of keys to skip, and stays open: the worker ends with it. Standard output has lines for
runner.py only: {"begin": KEY}, then {"key": KEY, ...}.
"""

import json
import os
import signal
import sys
import threading

from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.registry import BenchmarkPart
from megatape.lab.benchmark.gpu.results import ResultKey

# Values of the second argument.
TINY = "tiny"
FULL = "full"


def main(words: list[str]) -> None:
    """Measure a part.

    Args:
        words: Device; TINY or FULL; the part's name, module and arguments.
    """
    device, size, name, module, *arguments = words
    part = BenchmarkPart(name, module, seconds=0, arguments=tuple(arguments))
    # A copy, which child processes do not inherit.
    channel = os.fdopen(os.dup(1), "w")
    # Redirect to the log what libraries print.
    os.dup2(2, 1)
    skipped = {ResultKey.parse(text) for text in json.loads(sys.stdin.readline())}
    threading.Thread(target=_kill_after_input, daemon=True).start()
    part.measure(Bench(name, device, size == TINY, skipped, channel))


def _kill_after_input() -> None:
    """Wait until standard input ends, then kill this process and its children."""
    # Python could not close sys.stdin while a thread reads from it, so read the descriptor.
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)
