"""Standby processes: ranks that have imported everything, and wait for their rank number.

`megatape supervise --ranks` starts `megatape pretrain` with one end of a pipe (tools/cluster/supervise/rank_process.py). The
process imports the training loop and then waits in `wait_for_rank`. The supervisor sends the rank, or closes the pipe.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping

from megatape.errors import ExitStatus

# Environment variable with the descriptor of the pipe.
PIPE_VARIABLE = "MEGATAPE_RANK_PIPE"


def assignment(variables: Mapping[str, str], now: float) -> bytes:
    """Return the message that gives a process its rank.

    Args:
        variables: Environment variables of the rank.
        now: Time of the assignment in seconds since boot.
    """
    return json.dumps({"variables": dict(variables), "assigned_at": now}).encode()


def has_rank_pipe() -> bool:
    """Whether the supervisor sends this process its rank."""
    return PIPE_VARIABLE in os.environ


def wait_for_rank() -> float:
    """Wait until the supervisor sends this process its rank, and set the rank's environment variables.

    Returns:
        Time of the assignment in seconds since boot.

    Raises:
        SystemExit: The supervisor does not need this process.
    """
    with open(int(os.environ.pop(PIPE_VARIABLE)), "rb") as pipe:
        message = pipe.read()
    if not message:
        sys.exit(ExitStatus.DONE)
    # Processes start with SIGINT ignored, because a terminal sends Ctrl-C to waiting processes as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    content = json.loads(message)
    os.environ.update(content["variables"])
    return float(content["assigned_at"])
