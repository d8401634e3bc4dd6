"""Runs the smoke test of an attention backend in a child process, where a crash does no harm."""

import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from typing import NoReturn

from megatape.attention.backend import AttentionRequirements
from megatape.model.smoke_test import SmokeTest, smoke_test_backend
from megatape.utils.processes.python_process import child_environment, python_command

LOG = logging.getLogger(__name__)


def smoke_test_in_child(name: str, layers: Iterable[AttentionRequirements], test: SmokeTest) -> str | None:
    """Run `smoke_test_backend`, with the same arguments and result, in a child process.

    After an illegal memory access, CUDA refuses all further work in the process, or the process dies.
    """
    command = python_command("megatape.model.smoke_test_child")
    task = pickle.dumps((name, tuple(layers), test))
    child = subprocess.run(command, input=task, capture_output=True, env=child_environment(), check=False)
    LOG.debug("printed by the smoke test of %s: %s", name, child.stderr.decode(errors="replace"))
    if not child.stdout:
        return f"its process ended with status {child.returncode}"
    *_, last_line = child.stdout.splitlines()
    reason: str | None = json.loads(last_line)
    return reason


def main(words: list[str]) -> NoReturn:
    """Test the backend described on standard input, and print the reason why it fails, or null, as JSON."""
    reason = smoke_test_backend(*pickle.load(sys.stdin.buffer))
    sys.stdout.write(json.dumps(reason))
    sys.stdout.flush()
    os._exit(0)  # CUDA cannot be shut down after some failures.
