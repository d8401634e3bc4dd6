"""Ends a step or an evaluation whose data a rank cannot read."""

from megatape.distributed.exchange import on_all
from megatape.distributed.topology import Topology
from megatape.errors import DataError


def check_readable(num_unreadable: float, reason: str, what: str, topology: Topology) -> None:
    """Check that all ranks have read their samples. Collective if one has not.

    Args:
        num_unreadable: Number of ranks that cannot read their samples. The same on all ranks.
        reason: Reason why this rank cannot, or "".
        what: Description of the data, for the message.
        topology: All ranks.

    Raises:
        DataError: A rank cannot read its samples. Raised on all ranks.
    """

    def fail() -> None:
        if reason:
            raise DataError(reason)

    if num_unreadable:
        on_all(fail, topology, context=f"{what} cannot be read: ")
