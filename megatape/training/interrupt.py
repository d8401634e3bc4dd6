"""Stopping a run on a signal, after finishing the current step and saving."""

import signal
from collections.abc import Callable
from types import FrameType


class Interrupt:
    """Request to stop. A signal reaches single ranks, and all ranks agree to stop after the same step.

    After one Ctrl-C, launchers often send SIGINT and SIGTERM to every rank: both are the same request. A second SIGINT ends the
    process at once.

    Args:
        sum_over_ranks: Sums numbers over all ranks (Engine.sum_over_ranks).

    Attributes:
        is_requested: Whether a signal has asked this rank to stop.
        is_agreed: Whether the run stops. The same on all ranks.
    """

    def __init__(self, sum_over_ranks: Callable[..., list[float]]) -> None:
        self.is_requested = False
        self.is_agreed = False
        self._sum_over_ranks = sum_over_ranks
        self._is_from_user = False

    def request(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal (reliability/signals.py)."""
        self.is_requested = True
        if number == signal.SIGINT:
            self._is_from_user = True
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def agree(self, num_requests: float) -> None:
        """Agree to stop if any rank was asked to. `num_requests` is the number of such ranks, the same on all ranks."""
        self.is_agreed = num_requests > 0

    def poll(self) -> None:
        """Ask all ranks, and agree to stop if one was asked to. Collective."""
        (num_requests,) = self._sum_over_ranks(self.is_requested)
        self.agree(num_requests)

    def ask_if_from_user(self) -> bool:
        """Ask all ranks whether a user asked to stop (SIGINT), instead of a scheduler. Collective."""
        (num_users,) = self._sum_over_ranks(self._is_from_user)
        return num_users > 0
