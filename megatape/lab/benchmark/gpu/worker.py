"""Worker process of a part: `main` is called with DEVICE tiny|full NAME MODULE ARGUMENT ...

The first line of standard input is the JSON list of keys to skip. The process ends when its standard input does. Its standard
output has only lines for runner.py: {"begin": KEY}, then {"key": KEY, ...}.
"""

import json
import os
import signal
import sys
import threading

from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.parts import Part
from megatape.lab.benchmark.gpu.results import Key

# Sizes of a part.
TINY = "tiny"
FULL = "full"


def _end_with_parent() -> None:
    """Wait for the end of standard input, then kill this process and its children."""
    # Not sys.stdin: Python could not close it while a thread reads.
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def main(words: list[str]) -> None:
    """Measure a part.

    Args:
        words: Device, TINY or FULL, then name, module and arguments of the part.
    """
    device, size, name, module, *arguments = words
    part = Part(name, module, seconds=0, arguments=tuple(arguments))
    # Child processes do not inherit the channel.
    channel = os.fdopen(os.dup(1), "w")
    # Whatever libraries print goes to the log.
    os.dup2(2, 1)
    skipped = {Key.parse(text) for text in json.loads(sys.stdin.readline())}
    threading.Thread(target=_end_with_parent, daemon=True).start()
    part.measure(Bench(name, device, size == TINY, skipped, channel))
