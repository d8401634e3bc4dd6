"""Timeouts of a preflight."""

from dataclasses import dataclass

from megatape.distributed.network import NAME_TIMEOUT


@dataclass(frozen=True)
class Timeouts:
    """Timeouts in seconds.

    Attributes:
        name: Time in which the name of the main host may still become known.
        arrival: Time for all ranks to arrive at the store.
        file: Time for a new file to appear on other hosts.
        answer: Time for an answer of another rank, or for a collective.
    """

    name: float = NAME_TIMEOUT
    arrival: float = 25.0
    file: float = 5.0
    answer: float = 20.0


DEFAULT_TIMEOUTS = Timeouts()
