"""Finds replicas of weights and optimizer state that differ between ranks, after a memory or device fault."""

from collections import Counter, defaultdict

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.exchange import gather_values
from megatape.errors import TrainingDiverged
from megatape.utils.units import plural
from megatape.zero.kinds import WEIGHT
from megatape.zero.state import ZeroState

# Kind and name of a tensor.
Key = tuple[str, str]


class ReplicaCheck:
    """Checks during a run that replicas of weights and optimizer state are equal.

    If replicas differ at the first check, the message suspects the code. If they were equal before, it suspects the hardware.

    Args:
        state: State of the engine.
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
    """Return a sentence for each tensor whose replicas are not bit-identical; the same on all ranks. Collective.

    Replicas get equal gradients and take equal steps, so a difference is no rounding error. The checksums read each replicated
    tensor once, and ranks send 16 bytes for each.
    """
    found: dict[Key, int] = {}
    for axes, keys in _replicated_tensors(state).items():
        checksums = torch.stack([_checksum(state, *key) for key in keys])
        extremes = torch.stack([checksums, -checksums])
        for axis in axes:
            dist.all_reduce(extremes, dist.ReduceOp.MAX, group=state.mesh[axis].group)
        highest = extremes[0]
        lowest = -extremes[1]
        differing = (highest != lowest).nonzero().flatten().tolist()
        for index in differing:
            found[keys[index]] = int(checksums[index])
    return _describe(gather_values(found, state.topology))


def _replicated_tensors(state: ZeroState) -> dict[tuple[str, ...], list[Key]]:
    """Return the tensors that several ranks hold, by the axes over which they are replicated."""
    replicated: dict[tuple[str, ...], list[Key]] = defaultdict(list)
    for kind, names in state.names_by_kind.items():
        for name in names:
            axes = state.shared_axes(name)
            if axes and not state.matrix_state.contains(name, kind):
                replicated[axes].append((kind, name))
    return replicated


def _checksum(state: ZeroState, kind: str, name: str) -> Tensor:
    """Return the sum of this rank's elements, their bits read as integers. It is exact, and any one change alters it."""
    piece = state.piece(name, kind).values
    bits = torch.int16
    if piece.dtype == torch.float32:
        bits = torch.int32
    return piece.detach().view(bits).sum(dtype=torch.int64).to(state.device)


def _describe(of_ranks: list[dict[Key, int]]) -> list[str]:
    """Return a sentence for each differing tensor.

    Args:
        of_ranks: Checksum of each differing tensor, for every rank.
    """
    checksums: dict[Key, dict[int, int]] = defaultdict(dict)
    for rank, found in enumerate(of_ranks):
        for key, checksum in found.items():
            checksums[key][rank] = checksum
    sentences = []
    for (kind, name), by_rank in checksums.items():
        tensor = name
        if kind != WEIGHT:
            tensor = f"{kind} of {name}"
        (usual, count), *_ = Counter(by_rank.values()).most_common(1)
        if 2 * count > len(by_rank):
            others = [rank for rank, checksum in by_rank.items() if checksum != usual]
            ranks = ", ".join(map(str, others))
            sentences.append(f"{tensor} on rank {ranks} is not what the other {count} ranks have")
        else:
            ranks = ", ".join(map(str, sorted(by_rank)))
            sentences.append(f"{tensor} differs between ranks {ranks}")
    return sentences
