"""Checks before the first step that every rank has enough memory."""

import time
from collections.abc import Callable
from functools import partial

from megatape.distributed.values.exchange import gather_values
from megatape.errors import InsufficientMemory
from megatape.training.startup.memory.available_memory import available_memory, memory_capacity
from megatape.training.startup.memory.memory_plan import MemoryPlan
from megatape.utils.text.units import format_bytes

# Plan the run only if a rough upper bound of its memory reaches this share of the available memory.
SMALL = 0.25

# Seconds to wait for memory that ending processes may free.
PATIENCE = 20.0


def check_memory(plan: MemoryPlan, measure: Callable[[], float] | None = None, patience: float = PATIENCE) -> None:
    """Check that every rank has the memory that the run certainly needs. Collective.

    Args:
        plan: Memory plan.
        measure: Returns the bytes available to this rank.
        patience: Seconds to wait for ending processes, such as those of the run's previous start, to free memory.

    Raises:
        InsufficientMemory: The memory of a rank does not suffice. Raised on all ranks.
    """
    topology = plan.topology
    if measure is None:
        measure = partial(available_memory, topology.local_size)
    available = measure()
    least = min(gather_values(available, topology))
    if plan.rough_bound() < SMALL * least:
        return
    certain = plan.certain_bytes()
    if certain <= least:
        return
    if certain <= memory_capacity(topology.local_size):
        available = _wait_for(certain, available, measure, patience)
    least, device = min(gather_values((available, plan.device_name()), topology))
    if certain <= least:
        return
    raise InsufficientMemory(
        f"the run needs at least {format_bytes(certain)} of memory per rank, and {format_bytes(least)} are free on {device}: "
        f"{plan.remedy(least)}"
    )


def _wait_for(needed: float, available: float, measure: Callable[[], float], patience: float) -> float:
    """Wait until enough memory is available, or patience ends. Returns the bytes available then."""
    deadline = time.monotonic() + patience
    while available < needed and time.monotonic() < deadline:
        time.sleep(min(1.0, patience))
        available = measure()
    return available
