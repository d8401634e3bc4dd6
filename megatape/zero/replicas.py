"""Finds weights and optimizer state that ranks must hold alike but do not, after a fault of memory or of a device."""

from collections import Counter, defaultdict

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.exchange import exchange
from megatape.zero.state import WEIGHT, ZeroState

Key = tuple[str, str]  # kind and name of a tensor


def find_differences(state: ZeroState) -> list[str]:
    """A sentence for each tensor whose replicas differ by a bit or more; the same on all ranks. Collective.

    Replicas get equal gradients and take equal steps, so a difference is no rounding. The checksums read each
    replicated tensor once, and all that ranks send are 16 bytes for each.
    """
    shared: dict[tuple[str, ...], list[Key]] = defaultdict(list)
    for kind, names in state.tensors.items():
        for name in names:
            if not state.matrix_state.shape(name, kind):
                shared[state.shared_axes(name)].append((kind, name))
    shared.pop((), None)
    found: dict[Key, int] = {}
    for axes, keys in shared.items():
        sums = torch.stack([_checksum(state, *key) for key in keys])
        extremes = torch.stack([sums, -sums])
        for axis in axes:
            dist.all_reduce(extremes, dist.ReduceOp.MAX, group=state.mesh[axis].group)
        highest = extremes[0]
        lowest = -extremes[1]
        found |= {keys[index]: int(sums[index]) for index in (highest != lowest).nonzero().flatten().tolist()}
    return _describe(exchange(found, state.topology))


def _checksum(state: ZeroState, kind: str, name: str) -> Tensor:
    """The sum of this rank's numbers, their bits read as integers: exact, and another one after any one change."""
    piece = state.piece(name, kind).values
    bits = torch.int32 if piece.dtype == torch.float32 else torch.int16
    return piece.detach().view(bits).sum(dtype=torch.int64).to(state.engine.device)


def _describe(of_ranks: list[dict[Key, int]]) -> list[str]:
    """of_ranks: the checksum of each differing tensor, for every rank."""
    values: dict[Key, dict[int, int]] = defaultdict(dict)
    for rank, checksums in enumerate(of_ranks):
        for key, value in checksums.items():
            values[key][rank] = value
    sentences = []
    for (kind, name), by_rank in values.items():
        (usual, count), *_ = Counter(by_rank.values()).most_common(1)
        others = [rank for rank, value in by_rank.items() if value != usual]
        what = name if kind == WEIGHT else f"{kind} of {name}"
        if 2 * count > len(by_rank):
            sentences.append(f"{what} on rank {', '.join(map(str, others))} is not what the other {count} ranks have")
        else:
            sentences.append(f"{what} differs between ranks {', '.join(map(str, sorted(by_rank)))}")
    return sentences
