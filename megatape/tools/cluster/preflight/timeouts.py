"""Timeouts of a preflight."""

from dataclasses import dataclass

from megatape.distributed.launch.network import NAME_TIMEOUT


@dataclass(frozen=True)
class Timeouts:
    """Timeouts in seconds.

    Attributes:
        name: Waiting time until the main host's name resolves.
        arrival: Waiting time until all ranks have joined the store.
        file: Waiting time until a new file appears on other hosts.
        answer: Waiting time for another rank's answer, and for each collective.
    """

    name: float = NAME_TIMEOUT
    arrival: float = 25.0
    file: float = 5.0
    answer: float = 20.0


DEFAULT_TIMEOUTS = Timeouts()
