"""Advice for a run that lacks memory while starting or training.

The planner has a search for the smallest change, too (tools/planner/search/search.py). It may change the tensor-parallel ranks,
and estimates step times, which needs the cluster's bandwidths. A run can't change its ranks, knows no bandwidths, and its other
ranks wait for the advice, so this search only plans memory.
"""

import time
from itertools import product
from typing import get_args

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.memory_parts import Memory
from megatape.accounting.memory.rank_memory import MARGIN, plan_total
from megatape.config import ActivationCheckpointing, Config, SettingValues, TrainingConfig, with_settings
from megatape.errors import UserError
from megatape.zero.graph_limits import records_passes

# Time limit of the search for a change. Other ranks wait meanwhile.
REMEDY_SECONDS = 8.0


def smallest_fitting_change(
    config: Config, world_size: int, on_gpu: bool, available: float, limit: float = REMEDY_SECONDS
) -> tuple[SettingValues, Memory] | None:
    """Find the smallest change to micro-batch, activation checkpointing, CUDA graphs and ZeRO stage that makes a run fit.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks, which does not change.
        on_gpu: Whether the run uses GPUs.
        available: Device bytes per rank; on a CPU, its share of host memory.
        limit: Time limit in seconds.

    Returns:
        The changes and the memory planned with them, or None if no change was found.
    """
    deadline = time.monotonic() + limit
    records = on_gpu and records_passes(config, world_size)
    for changes in _changes(config.training, config.zero.stage, records):
        if time.monotonic() > deadline:
            return None
        try:
            layout = TrainingLayout.from_config(with_settings(config, changes), world_size)
        except UserError:
            continue
        memory = plan_total(layout, on_gpu)
        needed = memory.device_total
        if not on_gpu:
            needed += memory.host_total
        if needed <= (1 - MARGIN) * available:
            return changes, memory
    return None


def _changes(training: TrainingConfig, stage: int, records: bool) -> list[SettingValues]:
    """Return the possible changes, sorted by number of changed settings, then by cost in time.

    Args:
        training: Training section.
        stage: ZeRO stage.
        records: Whether the run records its passes as CUDA graphs.
    """
    powers = reversed(range(training.micro_batch_size.bit_length()))
    micro_batches = [2**power for power in powers if 2**power < training.micro_batch_size]
    modes = [mode for mode in get_args(ActivationCheckpointing) if mode != training.activation_checkpointing]
    higher_stages = [other for other in (1, 2, 3) if other > stage]
    graphs = [False] if records else []

    # None leaves a setting as it is.
    candidates = []
    for micro_batch, mode, higher_stage, graph in product(
        [None, *micro_batches], [None, *modes], [None, *higher_stages], [None, *graphs]
    ):
        changes: SettingValues = {}
        if micro_batch is not None:
            changes["training.micro_batch_size"] = micro_batch
        if mode is not None:
            changes["training.activation_checkpointing"] = mode
        if higher_stage is not None:
            changes["zero.stage"] = higher_stage
        if graph is not None:
            changes["training.cuda_graphs"] = graph
        if changes:
            candidates.append(changes)
    return sorted(candidates, key=_cost)


def _cost(changes: SettingValues) -> tuple[int, bool, bool]:
    """Return a sort key: a smaller micro-batch costs less time than recomputing, and recomputing less than exchanging."""
    return len(changes), "zero.stage" in changes, "training.activation_checkpointing" in changes
