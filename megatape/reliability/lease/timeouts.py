"""Times of a lease."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LeaseTimeouts:
    """Times of a lease, in seconds.

    Attributes:
        heartbeat_interval: Time between heartbeats.
        expiry: Time without a heartbeat, as another run sees it, until a holder on another machine counts as dead. NFS shows
            changes up to 60 s late, and a heartbeat or two may be slow.
        settle: Time until a run that took over knows that no other did at the same moment.
        poll_interval: Time between two checks of the file.
    """

    heartbeat_interval: float = 10.0
    expiry: float = 90.0
    settle: float = 1.0
    poll_interval: float = 1.0

    @property
    def late(self) -> float:
        """Time without a heartbeat from which on heartbeats are late."""
        return 2 * self.heartbeat_interval

    @property
    def safe_silence(self) -> float:
        """Time without a heartbeat up to which no other run can take over before a write that begins now has ended."""
        return self.expiry - 2 * self.heartbeat_interval


DEFAULT_TIMEOUTS = LeaseTimeouts()
