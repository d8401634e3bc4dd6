"""Finds replicated weights and optimizer state that differ between ranks, as after a memory or device fault."""

from collections import Counter, defaultdict

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.topology import name_ranks
from megatape.distributed.values.exchange import gather_values
from megatape.errors import TrainingDiverged, flag
from megatape.utils.text.units import plural
from megatape.zero.state.checksums import checksum
from megatape.zero.state.kinds import WEIGHT, TensorKey
from megatape.zero.state.zero_state import ZeroState


class ReplicaCheck:
    """Checks during a run that replicated weights and optimizer state are equal.

    If replicas differ at the first check, the message suspects the code. If they were equal before, it suspects the hardware.

    Args:
        state: Engine state.
    """

    def __init__(self, state: ZeroState) -> None:
        self._state = state
        self._were_equal = False

    def check(self) -> None:
        """Compare the replicas. Collective.

        Raises:
            TrainingDiverged: Replicas differ. Raised on all ranks.
        """
        differences = find_differences(self._state)
        if not differences:
            self._were_equal = True
            return
        text = differences[0]
        num_others = len(differences) - 1
        if num_others:
            text += f", and {plural(num_others, 'other tensor')}"
        cause = "memory or a device is at fault"
        if not self._were_equal:
            cause = (
                "this first check points to gradients that are not summed over the ranks, as of a module of your own; if the "
                f"code is sound, {cause}"
            )
        raise TrainingDiverged(
            f"{text}: replicas take equal steps, so {cause}. The weights in memory are corrupted; check the hosts of these "
            f"ranks and continue with {flag('resume')} auto"
        )


def find_differences(state: ZeroState) -> list[str]:
    """Return a sentence for each tensor with replicas that are not bit-identical, the same on all ranks. Collective.

    Replicas get equal gradients and take equal steps, so no difference is due to rounding. Checksums read each replicated
    tensor once, and ranks send 16 bytes per tensor.
    """
    differing_checksums: dict[TensorKey, int] = {}
    for axes, keys in _replicated_tensors(state).items():
        checksums = torch.stack([_checksum(state, key) for key in keys])
        extremes = torch.stack([checksums, -checksums])
        for axis in axes:
            dist.all_reduce(extremes, dist.ReduceOp.MAX, group=state.mesh[axis].group)
        highest = extremes[0]
        lowest = -extremes[1]
        differing = (highest != lowest).nonzero().flatten().tolist()
        for index in differing:
            differing_checksums[keys[index]] = int(checksums[index])
    return describe_differences(gather_values(differing_checksums, state.topology))


def _replicated_tensors(state: ZeroState) -> dict[tuple[str, ...], list[TensorKey]]:
    """Return the replicated tensors, by the axes along which they are replicated."""
    replicated: dict[tuple[str, ...], list[TensorKey]] = defaultdict(list)
    for kind, names in state.names_by_kind.items():
        for name in names:
            axes = state.shared_axes(name)
            if axes and not state.matrix_state.contains(name, kind):
                replicated[axes].append(TensorKey(kind, name))
    return replicated


def _checksum(state: ZeroState, key: TensorKey) -> Tensor:
    """Return the checksum of this rank's elements, on the device."""
    return checksum(state.piece(key.name, key.kind).values).to(state.device)


def describe_differences(checksums_of_ranks: list[dict[TensorKey, int]]) -> list[str]:
    """Return a sentence for each differing tensor, given the checksums of differing tensors on each rank."""
    checksums: dict[TensorKey, dict[int, int]] = defaultdict(dict)
    for rank, checksums_of_rank in enumerate(checksums_of_ranks):
        for key, value in checksums_of_rank.items():
            # Ranks exchange a TensorKey as a plain tuple.
            checksums[TensorKey(*key)][rank] = value
    return [_describe_tensor(key, by_rank) for key, by_rank in checksums.items()]


def _describe_tensor(key: TensorKey, checksums: dict[int, int]) -> str:
    """Return a sentence about a differing tensor, given its checksums by rank. It names the minority, if there is one."""
    tensor = key.name
    if key.kind != WEIGHT:
        tensor = f"{key.kind} of {key.name}"
    (usual, count), *_ = Counter(checksums.values()).most_common(1)
    if 2 * count > len(checksums):
        others = [rank for rank, checksum in checksums.items() if checksum != usual]
        return f"{tensor} on {name_ranks(others)} is not what the other {count} ranks have"
    return f"{tensor} differs between {name_ranks(checksums)}"
