"""Watch timeouts."""

import os
from dataclasses import dataclass
from datetime import timedelta

from megatape.errors import UserError

# DeepSpeed's own variable for the timeout of collectives, in minutes.
STALL_VAR = "DEEPSPEED_TIMEOUT"
# Minutes in a year.
MAX_STALL = 60 * 24 * 365


@dataclass(frozen=True)
class WatchTimeouts:
    """Watch timeouts in seconds, the same on all ranks.

    Only time in which a process runs counts: a stopped one may be continued.

    Attributes:
        period: Interval between heartbeats.
        step: Minimum timeout of a step without a new collective. Slow steps have a longer one.
        long: Minimum timeout of evaluations and saves.
        stall: Timeout of phases without a history: compiling, first reads, hashing.
        silence: Time without a heartbeat until a rank counts as dead, unless its phase has a shorter timeout. Longer than a
            file system may hang, because a page fault stops all threads.
        suspicion: The same after a collective has failed on any rank.
        grace: Time for a rank to exit by itself once the cause is known.
    """

    period: float = 2.0
    step: float = 60.0
    long: float = 300.0
    stall: float = 1800.0
    silence: float = 300.0
    suspicion: float = 10.0
    grace: float = 10.0

    @property
    def collectives(self) -> timedelta:
        """Timeout of collectives, longer than the watch needs to name the rank at fault."""
        return timedelta(seconds=self.stall + self.silence)


DEFAULT_TIMEOUTS = WatchTimeouts()


def timeouts_of_environment() -> WatchTimeouts:
    """Return the default timeouts, or the minutes of DEEPSPEED_TIMEOUT for every phase.

    Raises:
        UserError: The variable is not a number of minutes.
    """
    minutes = os.environ.get(STALL_VAR)
    if minutes is None:
        return DEFAULT_TIMEOUTS
    if not minutes.isdecimal() or not 1 <= int(minutes) <= MAX_STALL:
        raise UserError(f"{STALL_VAR} is {minutes!r}: give whole minutes from 1 to {MAX_STALL}, or unset it")
    seconds = 60.0 * int(minutes)
    return WatchTimeouts(step=seconds, long=seconds, stall=seconds)
