"""Finds replicated weights and optimizer state that differ between ranks, as after a memory or device fault."""

from collections import Counter, defaultdict

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.values.exchange import gather_values
from megatape.errors import TrainingDiverged
from megatape.utils.units import plural
from megatape.zero.kinds import WEIGHT
from megatape.zero.state import ZeroState

# Kind and name of a tensor.
Key = tuple[str, str]


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
            "ranks and continue with --resume auto"
        )


def find_differences(state: ZeroState) -> list[str]:
    """Return a sentence for each tensor with replicas that are not bit-identical, the same on all ranks. Collective.

    Replicas get equal gradients and take equal steps, so no difference is due to rounding. Checksums read each replicated
    tensor once, and ranks send 16 bytes per tensor.
    """
    differing_checksums: dict[Key, int] = {}
    for axes, keys in _replicated_tensors(state).items():
        checksums = torch.stack([_checksum(state, *key) for key in keys])
        extremes = torch.stack([checksums, -checksums])
        for axis in axes:
            dist.all_reduce(extremes, dist.ReduceOp.MAX, group=state.mesh[axis].group)
        highest = extremes[0]
        lowest = -extremes[1]
        differing = (highest != lowest).nonzero().flatten().tolist()
        for index in differing:
            differing_checksums[keys[index]] = int(checksums[index])
    return _describe(gather_values(differing_checksums, state.topology))


def _replicated_tensors(state: ZeroState) -> dict[tuple[str, ...], list[Key]]:
    """Return the replicated tensors, by the axes along which they are replicated."""
    replicated: dict[tuple[str, ...], list[Key]] = defaultdict(list)
    for kind, names in state.names_by_kind.items():
        for name in names:
            axes = state.shared_axes(name)
            if axes and not state.matrix_state.contains(name, kind):
                replicated[axes].append((kind, name))
    return replicated


def _checksum(state: ZeroState, kind: str, name: str) -> Tensor:
    """Sum this rank's elements with their bits read as integers. The sum is exact, and changing any element changes it."""
    piece = state.piece(name, kind).values
    bits = torch.int16
    if piece.dtype == torch.float32:
        bits = torch.int32
    return piece.detach().view(bits).sum(dtype=torch.int64).to(state.device)


def _describe(checksums_of_ranks: list[dict[Key, int]]) -> list[str]:
    """Return a sentence for each differing tensor, given each rank's checksums."""
    checksums: dict[Key, dict[int, int]] = defaultdict(dict)
    for rank, checksums_of_rank in enumerate(checksums_of_ranks):
        for key, checksum in checksums_of_rank.items():
            checksums[key][rank] = checksum
    return [_describe_tensor(kind, name, by_rank) for (kind, name), by_rank in checksums.items()]


def _describe_tensor(kind: str, name: str, checksums: dict[int, int]) -> str:
    """Return a sentence about a differing tensor, given its checksums by rank. It names the minority, if there is one."""
    tensor = name
    if kind != WEIGHT:
        tensor = f"{kind} of {name}"
    (usual, count), *_ = Counter(checksums.values()).most_common(1)
    if 2 * count > len(checksums):
        others = [rank for rank, checksum in checksums.items() if checksum != usual]
        ranks = ", ".join(map(str, others))
        return f"{tensor} on rank {ranks} is not what the other {count} ranks have"
    ranks = ", ".join(map(str, sorted(checksums)))
    return f"{tensor} differs between ranks {ranks}"
