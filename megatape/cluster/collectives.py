"""Checks and times the collectives that training uses."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.runtime.topology import Topology


@dataclass(frozen=True)
class Rate:
    """One collective: whether every rank received the right values, and bytes per second that a rank moved."""

    name: str
    correct: bool
    bandwidth: float


def measure(device: torch.device, topology: Topology) -> list[Rate]:
    """Check and time the collectives that training uses. Collective over all ranks."""
    world, rank = topology.world_size, topology.rank
    part = (2**24 if device.type == "cuda" else 2**19) // world  # float32 elements that each rank sends to each other rank
    steps = torch.arange(part, device=device, dtype=torch.float32) % 1000
    blocks = torch.cat([steps + destination for destination in range(world)])  # one block per destination
    ranks_sum = world * (world - 1) / 2
    whole, own = torch.empty_like(blocks), torch.empty_like(steps)
    moved = 4 * part * (world - 1)
    exchanged = torch.cat([(steps + rank) * world + source for source in range(world)])
    reduced = world * (steps + rank) + ranks_sum
    # Bytes that a rank moves, the collective, its output, and what it has to be.
    cases: dict[str, tuple[int, Callable[[], Any], Tensor, Tensor]] = {
        "all-reduce": (2 * moved, lambda: dist.all_reduce(whole.copy_(blocks).add_(rank)), whole, world * blocks + ranks_sum),
        "all-gather": (moved, lambda: dist.all_gather_into_tensor(whole, steps + rank), whole, blocks),
        "reduce-scatter": (moved, lambda: dist.reduce_scatter_tensor(own, blocks + rank), own, reduced),
        "all-to-all": (moved, lambda: dist.all_to_all_single(whole, blocks * world + rank), whole, exchanged),
    }
    rates = []
    for name, (amount, act, output, expected) in cases.items():
        act()  # also warms up
        correct = torch.equal(output, expected)
        rounds = 3
        _wait(device)
        started = time.perf_counter()
        for _ in range(rounds):
            act()
        _wait(device)
        seconds = torch.tensor([(time.perf_counter() - started) / rounds, float(not correct)], device=device)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        rates.append(Rate(name, not seconds[1], amount / float(seconds[0])))
    return rates


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()
