"""Ends a step or evaluation on all ranks when one cannot read its data."""

from megatape.distributed.topology import Topology
from megatape.distributed.values.exchange import on_all
from megatape.errors import DataError


def check_readable(num_unreadable: float, reason: str | None, what: str, topology: Topology) -> None:
    """Check that all ranks have read their samples. Collective if one has not.

    Args:
        num_unreadable: Ranks that cannot read their samples. The same number on all ranks.
        reason: Reason why this rank cannot, or None.
        what: Description of the data, for the message.
        topology: All ranks.

    Raises:
        DataError: A rank cannot read its samples. Raised on all ranks.
    """

    def fail() -> None:
        if reason is not None:
            raise DataError(reason)

    if num_unreadable:
        on_all(fail, topology, context=f"{what} cannot be read: ")
