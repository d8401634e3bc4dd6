"""Checks and times the collectives that training uses."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.topology import Topology

# Numbers of float32 elements that a rank exchanges with all ranks.
ELEMENTS_GPU = 2**24
ELEMENTS_CPU = 2**19
# Timed repetitions of each collective.
ROUNDS = 3


@dataclass(frozen=True)
class Rate:
    """Result of one collective.

    Attributes:
        name: Name of the collective.
        correct: Whether every rank received the right values.
        bandwidth: Bytes per second that a rank moved.
    """

    name: str
    correct: bool
    bandwidth: float


@dataclass(frozen=True)
class _Case:
    """A collective with known results.

    Attributes:
        name: Name of the collective.
        moved_bytes: Bytes that a rank moves.
        run: The call, which writes into `output`. Only its first result must be right.
        output: Tensor that receives the result.
        expected: The right result.
    """

    name: str
    moved_bytes: int
    run: Callable[[], Any]
    output: Tensor
    expected: Tensor


def measure(device: torch.device, topology: Topology) -> list[Rate]:
    """Check and time the collectives that training uses. Collective over all ranks."""
    rates = []
    for case in _cases(device, topology):
        # The first run also warms up.
        case.run()
        is_correct = torch.equal(case.output, case.expected)

        _wait(device)
        started = time.perf_counter()
        for _ in range(ROUNDS):
            case.run()
        _wait(device)
        seconds = (time.perf_counter() - started) / ROUNDS

        worst = torch.tensor([seconds, float(not is_correct)], device=device)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        slowest, any_wrong = worst.tolist()
        rates.append(Rate(case.name, not any_wrong, case.moved_bytes / slowest))
    return rates


def _cases(device: torch.device, topology: Topology) -> list[_Case]:
    """Return the collectives, with values that depend on the sending and the receiving rank."""
    world = topology.world_size
    rank = topology.rank
    num_elements = ELEMENTS_CPU
    if device.type == "cuda":
        num_elements = ELEMENTS_GPU
    # Number of elements for each receiving rank.
    part = num_elements // world
    moved_bytes = torch.float32.itemsize * part * (world - 1)
    sum_of_ranks = world * (world - 1) / 2

    steps = torch.arange(part, device=device, dtype=torch.float32) % 1000
    blocks = torch.cat([steps + receiver for receiver in range(world)])
    # The timed calls only communicate: what they send is prepared here.
    sent_part = steps + rank
    sent_blocks = blocks + rank
    sent_to_each = blocks * world + rank
    # Grows with each call, so that only the first result is the expected one.
    summed = sent_blocks.clone()
    whole = torch.empty_like(blocks)
    own_part = torch.empty_like(steps)
    exchanged = torch.cat([(steps + rank) * world + sender for sender in range(world)])
    reduced = world * (steps + rank) + sum_of_ranks
    return [
        _Case(
            "all-reduce",
            2 * moved_bytes,
            lambda: dist.all_reduce(summed),
            summed,
            world * blocks + sum_of_ranks,
        ),
        _Case(
            "all-gather",
            moved_bytes,
            lambda: dist.all_gather_into_tensor(whole, sent_part),
            whole,
            blocks,
        ),
        _Case(
            "reduce-scatter",
            moved_bytes,
            lambda: dist.reduce_scatter_tensor(own_part, sent_blocks),
            own_part,
            reduced,
        ),
        _Case(
            "all-to-all",
            moved_bytes,
            lambda: dist.all_to_all_single(whole, sent_to_each),
            whole,
            exchanged,
        ),
    ]


def _wait(device: torch.device) -> None:
    """Wait until all ranks have finished their work."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()
