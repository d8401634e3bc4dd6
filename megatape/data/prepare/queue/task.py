"""Shares of one preparation, for several machines."""

import os
import re
from dataclasses import dataclass

from megatape.distributed.launch.launchers import BY_HAND, launcher_of_environment
from megatape.errors import UserError, flag


@dataclass(frozen=True)
class Task:
    """One of several commands preparing the same corpus. Its share is every `count`-th unit, starting at `index`.

    After finishing its share, it continues with units that others have not begun, so a slow or lost command delays nobody.
    """

    index: int = 0
    count: int = 1


WHOLE = Task()


def parse_task(text: str) -> Task:
    """Parse a task such as "3/16", counted from 0. Raises UserError."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if not match or not int(match[1]) < int(match[2]):
        raise UserError(f"{flag('task')} is {text!r}: give a number from 0 on and the number of tasks, such as 3/16")
    return Task(int(match[1]), int(match[2]))


def task_of_environment() -> Task:
    """Return the task of this process, by its index in a Slurm array and its launcher rank, if it has any.

    Raises:
        UserError: A variable is not a number.
    """
    launcher = launcher_of_environment() or BY_HAND
    rank = _count(launcher.variables.rank, 0)
    world_size = max(_count(launcher.variables.world_size, 1), 1)
    index = _count("SLURM_ARRAY_TASK_ID", 0) - _count("SLURM_ARRAY_TASK_MIN", 0)
    step = max(_count("SLURM_ARRAY_TASK_STEP", 1), 1)
    count = max(_count("SLURM_ARRAY_TASK_COUNT", 1), 1)
    # Each process of the array's tasks is a task of the preparation.
    array_task = index // step % count
    return Task(array_task * world_size + rank % world_size, count * world_size)


def _count(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    if not value.isdecimal():
        raise UserError(f"{name} is {value!r}, not a number: unset it, or give {flag('task')}")
    return int(value)
