"""The processes of an evaluation, which divide its batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from megatape.runtime.exchange import exchange, on_main
from megatape.runtime.launchers import discover
from megatape.runtime.topology import Topology

Value = TypeVar("Value")


class FailedElsewhere(Exception):
    """An error that all processes know of, on those that leave it to the main one to tell."""


@dataclass(frozen=True)
class Ranks:
    """The processes that divide the batches: this one has those of number `share` of `shares`.

    topology: of all processes; None if this one is alone. writes: whether it writes the samples of its share, which it may have
    in common with others that hold parts of the same model.

    An error that all processes know of is raised by the main one; the others raise FailedElsewhere."""

    topology: Topology | None = None
    share: int = 0
    shares: int = 1
    writes: bool = True

    @property
    def is_main(self) -> bool:
        """Whether this process writes what is written once."""
        return self.topology is None or self.topology.is_main

    def on_main(self, work: Callable[[], Value]) -> Value:
        """What `work` returns (JSON) on the main process, on all of them. Raises its ValueError or OSError."""
        if self.topology is None:
            return work()
        try:
            return on_main(work, self.topology)
        except (ValueError, OSError):
            if self.is_main:
                raise
            raise FailedElsewhere from None

    def together(self, work: Callable[[], None]) -> None:
        """Wait until all processes have done their work. Raises a ValueError with the first fault of any."""
        if self.topology is None:
            return work()
        fault = ""
        try:
            work()
        except (ValueError, OSError) as error:
            fault = str(error)
        faults = [text for text in exchange(fault, self.topology) if text]
        if faults and self.is_main:
            raise ValueError(faults[0])
        if faults:
            raise FailedElsewhere
        return None


ALONE = Ranks()


@contextmanager
def launched_ranks() -> Iterator[Ranks]:
    """The processes that a launcher started. Collective over them. Raises ValueError for variables that make no sense."""
    topology = discover()
    if topology.world_size == 1:
        yield ALONE
        return
    from megatape.zero.distributed import initialize_distributed, shut_down  # DeepSpeed takes seconds to import

    initialize_distributed(topology)
    try:
        yield Ranks(topology, topology.rank, topology.world_size)
    finally:
        shut_down()
