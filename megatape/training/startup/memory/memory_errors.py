"""Explains out-of-memory errors in one line."""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from megatape.errors import OutOfMemory, OutOfMemoryInStep
from megatape.reliability.watch.rank_errors import RankFailed
from megatape.training.startup.memory.available_memory import memory_capacity
from megatape.training.startup.memory.memory_plan import MemoryPlan
from megatape.utils.text.units import format_bytes

# Errors of torch and its libraries that have no type of their own.
MESSAGES = re.compile(r"can't allocate memory|out of memory|not enough memory|bad_alloc|std::bad_array_new_length")


@contextmanager
def explained_memory_errors(plan: MemoryPlan, steps: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Convert the block's out-of-memory errors to OutOfMemory, with a message based on the plan.

    Args:
        plan: Memory plan.
        steps: Returns the number of steps made by this process. After the first one the error counts as a death, so that the
            run is restarted as long as it advances.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        num_steps = steps()
        explanation = _explain(plan, num_steps)
        if num_steps:
            raise OutOfMemoryInStep(explanation) from error
        raise OutOfMemory(explanation) from error


def _explain(plan: MemoryPlan, num_steps: int) -> str:
    """Describe in one line where and when memory was exhausted, what was planned, and what to change."""
    when = "before the end of the first step"
    if num_steps:
        when = f"in step {num_steps + 1} of this process"
    text = f"out of memory {when}, on {plan.device_name()}"
    # Planning needs host memory as well.
    with suppress(MemoryError, RuntimeError, OSError):
        memory = plan.memory()
        largest = max(memory.device, key=lambda part: memory.device[part])
        total = memory_capacity(plan.topology.local_size)
        text += f" with {format_bytes(total)} per rank: the plan counts {format_bytes(memory.device_total)}, "
        text += f"most of it {largest.value} ({format_bytes(memory.device[largest])})"
        return f"{text}: {plan.remedy(min(total, memory.device_total))}"
    return f"{text}: lower training.micro_batch_size, or ask megatape plan"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU's memory or this host's memory is exhausted. RankFailed is about another rank's error, so never is."""
    if isinstance(error, OutOfMemory | RankFailed):
        return False
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and bool(MESSAGES.search(str(error)))
