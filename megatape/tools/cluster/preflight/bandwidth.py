"""Checks the results and the speed of the collectives that training uses."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.topology import Topology

# Number of float32 elements that each rank exchanges with all ranks.
ELEMENTS_GPU = 2**24
ELEMENTS_CPU = 2**19
# Integers up to this one have an exact value in float32.
EXACT = 2**24
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
    run: Callable[[], None]
    output: Tensor
    expected: Tensor


def measure(device: torch.device, topology: Topology) -> list[Rate]:
    """Check and time the collectives that training uses. Returns a rate for each. Collective over all ranks."""
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


class _Values:
    """Values that ranks exchange. They depend on the sending and the receiving rank.

    All values are integers below EXACT, also the sums over all ranks, which float32 would round otherwise. All inputs are made
    before the timed calls, which then only communicate.

    Attributes:
        world: Number of ranks.
        rank: This rank.
        moved_bytes: Bytes of the blocks for the other ranks.
        counting: Values of a block, before the rank numbers are added.
        blocks: A block for each receiver: `counting` plus the receiver's number.
        summands: A block for each receiver, which all ranks add up after adding `own_summand`.
        own_summand: Number that depends on this rank.
        sum_of_summands: Sum of all ranks' own summands.
    """

    def __init__(self, device: torch.device, topology: Topology) -> None:
        num_elements = ELEMENTS_CPU
        if device.type == "cuda":
            num_elements = ELEMENTS_GPU
        self.world = topology.world_size
        self.rank = topology.rank
        elements_per_receiver = num_elements // self.world
        self.moved_bytes = torch.float32.itemsize * elements_per_receiver * (self.world - 1)
        self.counting = torch.arange(elements_per_receiver, device=device, dtype=torch.float32) % 1000
        receivers = torch.arange(self.world, device=device, dtype=torch.float32)
        self.blocks = (receivers.unsqueeze(1) + self.counting).flatten()
        # Each rank adds two numbers below the limit.
        limit = min(1000, EXACT // (2 * self.world))
        self.summands = self.blocks % limit
        self.own_summand = self.rank % limit
        self.sum_of_summands = sum(rank % limit for rank in range(self.world))

    def block(self, tensor: Tensor) -> Tensor:
        """Return this rank's block of a tensor with a block for each receiver."""
        return tensor.view(self.world, -1)[self.rank]

    def paired(self, receivers: Tensor, senders: Tensor) -> Tensor:
        """Return numbers that depend on receivers and senders, given as whole numbers of float32."""
        numbers = receivers.long() * self.world + senders.long()
        return (numbers % EXACT).float()


def _cases(device: torch.device, topology: Topology) -> list[_Case]:
    """Return the collectives with their inputs and expected results."""
    values = _Values(device, topology)
    return [_all_reduce(values), _all_gather(values), _reduce_scatter(values), _all_to_all(values)]


def _all_reduce(values: _Values) -> _Case:
    # The sum grows with each call, so only the first result is the expected one.
    summed = values.summands + values.own_summand
    expected = values.world * values.summands + values.sum_of_summands

    def run() -> None:
        dist.all_reduce(summed)

    return _Case("all-reduce", 2 * values.moved_bytes, run, summed, expected)


def _all_gather(values: _Values) -> _Case:
    sent = values.counting + values.rank
    received = torch.empty_like(values.blocks)

    def run() -> None:
        dist.all_gather_into_tensor(received, sent)

    return _Case("all-gather", values.moved_bytes, run, received, values.blocks)


def _reduce_scatter(values: _Values) -> _Case:
    sent = values.summands + values.own_summand
    received = torch.empty_like(values.counting)
    expected = values.world * values.block(values.summands) + values.sum_of_summands

    def run() -> None:
        dist.reduce_scatter_tensor(received, sent)

    return _Case("reduce-scatter", values.moved_bytes, run, received, expected)


def _all_to_all(values: _Values) -> _Case:
    own_rank = torch.full_like(values.blocks, values.rank)
    sent = values.paired(values.blocks, own_rank)
    received = torch.empty_like(values.blocks)
    own_block = values.block(values.blocks).repeat(values.world)
    senders = torch.arange(values.world, device=sent.device).repeat_interleave(values.counting.numel())
    expected = values.paired(own_block, senders)

    def run() -> None:
        dist.all_to_all_single(received, sent)

    return _Case("all-to-all", values.moved_bytes, run, received, expected)


def _wait(device: torch.device) -> None:
    """Wait until all ranks have finished their work."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()
