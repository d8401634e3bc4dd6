"""Advice for a run whose memory does not suffice, while it starts or trains."""

import time
from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

from megatape.accounting.memory import Memory, plan_total
from megatape.accounting.needs import MARGIN
from megatape.config import ActivationCheckpointing, Config, parse_config
from megatape.errors import UserError

REMEDY_SECONDS = 8.0  # Time limit of the search for a change. Other ranks wait meanwhile.

Changes = dict[str, Any]  # section.key -> value


def smallest_fitting_change(
    config: Config, world_size: int, on_gpu: bool, available: float, limit: float = REMEDY_SECONDS
) -> tuple[Changes, Memory] | None:
    """Find the smallest change of micro-batch, activation checkpointing and ZeRO stage after which a rank's memory suffices.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks, which does not change.
        on_gpu: Whether the run uses GPUs.
        available: Bytes of a rank's device or, on a CPU, of its share of the host.
        limit: Time limit of the search in seconds.

    Returns:
        The changes and the memory planned with them, or None if no change was found.
    """
    deadline = time.monotonic() + limit
    for changes in _changes(config):
        if time.monotonic() > deadline:
            return None
        candidate = _changed(config, changes, world_size)
        if candidate is None:
            continue
        memory = plan_total(candidate, world_size, on_gpu)
        needed = memory.device_total
        if not on_gpu:
            needed += sum(memory.host.values())
        if needed <= (1 - MARGIN) * available:
            return changes, memory
    return None


def _changes(config: Config) -> Iterator[Changes]:
    """Yield changes, sorted by the number of changed settings and then by their cost in time."""
    training = config.training
    micro = [2**power for power in reversed(range(training.micro_batch_size.bit_length()))]
    modes = [training.activation_checkpointing, *get_args(ActivationCheckpointing)]
    stages = [stage for stage in (1, 2, 3) if stage > config.zero.stage]
    values = product(
        dict.fromkeys([training.micro_batch_size, *(size for size in micro if size < training.micro_batch_size)]),
        dict.fromkeys(modes),
        [config.zero.stage, *stages],
    )
    candidates = []
    for size, mode, stage in values:
        changes: Changes = {}
        if size != training.micro_batch_size:
            changes["training.micro_batch_size"] = size
        if mode != training.activation_checkpointing:
            changes["training.activation_checkpointing"] = mode
        if stage != config.zero.stage:
            changes["zero.stage"] = stage
        if changes:
            candidates.append(changes)
    yield from sorted(candidates, key=_cost)


def _cost(changes: Changes) -> tuple[int, bool, bool]:
    """Return a sort key: a smaller micro-batch costs less time than recomputation, and recomputation less than exchanges."""
    return len(changes), "zero.stage" in changes, "training.activation_checkpointing" in changes


def _changed(config: Config, changes: Changes, world_size: int) -> Config | None:
    """Return the configuration with the changes, or None if it is invalid."""
    raw = config.model_dump()
    for key, value in changes.items():
        section, _, name = key.partition(".")
        raw[section][name] = value
    try:
        candidate = parse_config(raw, "plan")
        candidate.accumulation(world_size)
    except UserError:
        return None
    return candidate
