"""Checks the results and the speed of the collectives that training uses."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.topology import Topology

# Number of float32 elements that each rank exchanges with all ranks.
ELEMENTS_GPU = 2**24
ELEMENTS_CPU = 2**19
# Timed repetitions of each collective.
ROUNDS = 3


@dataclass(frozen=True)
class Rate:
    """Result of one collective.

    Attributes:
        name: Name of the collective.
        correct: Whether all ranks received the expected values.
        bandwidth: Bytes per second moved by the slowest rank.
    """

    name: str
    correct: bool
    bandwidth: float


@dataclass(frozen=True)
class _Case:
    """A collective with known results.

    Attributes:
        name: Name of the collective.
        moved_bytes: Bytes moved by each rank.
        run: Function that runs the collective. Only its first result has to equal `expected`.
        output: Tensor that receives the result.
        expected: Expected result.
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
    elements_per_receiver = num_elements // world
    moved_bytes = torch.float32.itemsize * elements_per_receiver * (world - 1)
    sum_of_ranks = world * (world - 1) / 2

    # Prepare the inputs before the timed calls, which then only communicate.
    counting = torch.arange(elements_per_receiver, device=device, dtype=torch.float32) % 1000
    blocks = torch.cat([counting + receiver for receiver in range(world)])
    sent_block = counting + rank
    sent_blocks = blocks + rank
    sent_to_each = blocks * world + rank
    # The sum grows with each call, so only the first result is the expected one.
    summed = sent_blocks.clone()
    received_blocks = torch.empty_like(blocks)
    received_block = torch.empty_like(counting)
    exchanged = torch.cat([(counting + rank) * world + sender for sender in range(world)])
    reduced = world * (counting + rank) + sum_of_ranks
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
            lambda: dist.all_gather_into_tensor(received_blocks, sent_block),
            received_blocks,
            blocks,
        ),
        _Case(
            "reduce-scatter",
            moved_bytes,
            lambda: dist.reduce_scatter_tensor(received_block, sent_blocks),
            received_block,
            reduced,
        ),
        _Case(
            "all-to-all",
            moved_bytes,
            lambda: dist.all_to_all_single(received_blocks, sent_to_each),
            received_blocks,
            exchanged,
        ),
    ]


def _wait(device: torch.device) -> None:
    """Wait until all ranks have finished their work."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()
