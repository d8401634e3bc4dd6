"""Lease timeouts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LeaseTimeouts:
    """Lease timeouts, in seconds.

    Attributes:
        heartbeat_interval: Time between heartbeats.
        expiry: Time without a heartbeat until a holder on another machine counts as dead. NFS shows changes up to 60 s late,
            and a heartbeat or two may be slow.
        settle: Time until a run taking over knows that no other run did at the same moment.
        poll_interval: Time between checks of the file.
    """

    heartbeat_interval: float = 10.0
    expiry: float = 90.0
    settle: float = 1.0
    poll_interval: float = 1.0

    @property
    def late(self) -> float:
        """Time without a heartbeat after which it is late."""
        return 2 * self.heartbeat_interval

    @property
    def safe_silence(self) -> float:
        """Time without a heartbeat during which no other run can take over before a write started now has ended."""
        return self.expiry - 2 * self.heartbeat_interval


DEFAULT_TIMEOUTS = LeaseTimeouts()
