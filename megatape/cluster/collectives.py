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
    cases: dict[str, tuple[int, Callable[[], Tensor], Tensor]] = {
        "all-reduce": (2 * moved, lambda: _all_reduced(whole.copy_(blocks).add_(rank)), world * blocks + ranks_sum),
        "all-gather": (moved, lambda: _into(whole, dist.all_gather_into_tensor, steps + rank), blocks),
        "reduce-scatter": (
            moved,
            lambda: _into(own, dist.reduce_scatter_tensor, blocks + rank),
            world * (steps + rank) + ranks_sum,
        ),
        "all-to-all": (
            moved,
            lambda: _into(whole, dist.all_to_all_single, blocks * world + rank),
            torch.cat([(steps + rank) * world + source for source in range(world)]),
        ),
    }
    rates = []
    for name, (amount, act, expected) in cases.items():
        correct = torch.equal(act(), expected)  # also warms up
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


def _all_reduced(tensor: Tensor) -> Tensor:
    dist.all_reduce(tensor)
    return tensor


def _into(output: Tensor, collective: Callable[[Tensor, Tensor], Any], value: Tensor) -> Tensor:
    collective(output, value)
    return output


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()
