"""Expected results of collectives between more ranks than a test can start."""

from collections import defaultdict

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from megatape.distributed.topology import Topology
from megatape.tools.cluster.preflight import bandwidth
from megatape.tools.cluster.preflight.bandwidth import measure

# With this many ranks, sums of values that depend on both ranks' numbers can exceed the integers that float32 has.
WORLD = 4096
RECEIVER = 2047


class Network:
    """Replacement of collectives. It stores what each rank sends, and then gives RECEIVER what a network without faults would.

    Attributes:
        is_complete: Whether all ranks have sent their values.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_complete = False
        self._sent: dict[str, list[Tensor]] = defaultdict(list)
        self._sums: dict[str, Tensor] = {}
        self._called: set[str] = set()
        monkeypatch.setattr(dist, "barrier", lambda: None)
        monkeypatch.setattr(dist, "all_reduce", self.all_reduce)
        monkeypatch.setattr(dist, "all_gather_into_tensor", self.all_gather)
        monkeypatch.setattr(dist, "reduce_scatter_tensor", self.reduce_scatter)
        monkeypatch.setattr(dist, "all_to_all_single", self.all_to_all)

    def start_rank(self) -> None:
        """Forget which collectives the last rank has called."""
        self._called.clear()

    def all_reduce(self, tensor: Tensor, op: object = dist.ReduceOp.SUM) -> None:
        if op == dist.ReduceOp.MAX or not self._is_first("all-reduce"):
            return
        if self.is_complete:
            tensor.copy_(self._sums["all-reduce"])
        else:
            self._add("all-reduce", tensor)

    def reduce_scatter(self, received: Tensor, sent: Tensor) -> None:
        if not self._is_first("reduce-scatter"):
            return
        if self.is_complete:
            received.copy_(self._sums["reduce-scatter"].view(WORLD, -1)[RECEIVER])
        else:
            self._add("reduce-scatter", sent)

    def all_gather(self, received: Tensor, sent: Tensor) -> None:
        if not self._is_first("all-gather"):
            return
        if self.is_complete:
            received.copy_(torch.cat(self._sent["all-gather"]))
        else:
            self._sent["all-gather"].append(sent.clone())

    def all_to_all(self, received: Tensor, sent: Tensor) -> None:
        if not self._is_first("all-to-all"):
            return
        if self.is_complete:
            received.copy_(torch.cat(self._sent["all-to-all"]))
        else:
            self._sent["all-to-all"].append(sent.view(WORLD, -1)[RECEIVER].clone())

    def _is_first(self, name: str) -> bool:
        """Whether this is the rank's first call, which is checked. The others are only timed."""
        if name in self._called:
            return False
        self._called.add(name)
        return True

    def _add(self, name: str, summand: Tensor) -> None:
        """Add a rank's values in float32, as a network does."""
        if name in self._sums:
            self._sums[name] += summand
        else:
            self._sums[name] = summand.clone()


def test_thousands_of_ranks_exchange_exact_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A healthy network was called faulty if float32 rounded the sums."""
    monkeypatch.setattr(bandwidth, "ELEMENTS_CPU", 2 * WORLD)
    network = Network(monkeypatch)
    device = torch.device("cpu")
    for rank in range(WORLD):
        network.start_rank()
        measure(device, Topology(rank, WORLD, 0))
    network.is_complete = True
    network.start_rank()

    rates = measure(device, Topology(RECEIVER, WORLD, 0))

    assert {rate.name: rate.correct for rate in rates} == dict.fromkeys(
        ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"), True
    )
