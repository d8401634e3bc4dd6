"""Messages between watches, in the ranks' store: heartbeats, the first failed collective, the verdict, and ranks that left."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import torch.distributed as dist

from megatape.distributed.values.messages import Messages, StoreEnded
from megatape.reliability.watch.heartbeat import Heartbeat, parse_heartbeat
from megatape.reliability.watch.verdict import Verdict
from megatape.utils.values.validation import as_type

Content = TypeVar("Content")


class ForeignMessage(ValueError):
    """A message was not written by a watch, but by a process that is not a rank of this run."""


class WatchMessages:
    """Messages sent and read by one rank's watch. All calls raise StoreEnded once the store has ended.

    Args:
        store: The ranks' store. No other thread may use this connection.
        rank: This rank.
    """

    def __init__(self, store: dist.Store, rank: int) -> None:
        self._messages = Messages(store, "watch/")
        self._rank = rank

    def authenticate(self, secret: bytes) -> None:
        """Sign messages from now on, and ignore messages not signed with this secret, which only the run's ranks know."""
        self._messages.authenticate(secret)

    def send_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Replace this rank's heartbeat."""
        self._messages.put(f"heartbeat/{self._rank}", *heartbeat)

    def heartbeats(self, ranks: Iterable[int]) -> dict[int, Heartbeat]:
        """Return the newest heartbeat of each rank that has sent one.

        Raises:
            ForeignMessage: Another process wrote a value that is not a heartbeat.
        """
        heartbeats: dict[int, Heartbeat] = {}
        for rank in ranks:
            values = self._messages.get(f"heartbeat/{rank}")
            if values:
                heartbeats[rank] = _parsed(parse_heartbeat, values)
        return heartbeats

    def report_failed_collective(self, error: str) -> None:
        """Report a failed collective on this rank, unless another rank has done so or the store has ended."""
        with suppress(StoreEnded):
            self._messages.put_first("failure", self._rank, error)

    def failed_collective(self) -> tuple[int, str] | None:
        """Return the first rank reporting a failed collective, and its error, or None.

        Raises:
            ForeignMessage: Another process wrote a value that is not a report.
        """
        values = self._messages.get("failure")
        if not values:
            return None
        return _parsed(_parse_failure, values)

    def publish_verdict(self, verdict: Verdict) -> bool:
        """Publish a verdict, unless another rank has done so or the store has ended.

        Returns:
            Whether this verdict is the first one.
        """
        with suppress(StoreEnded):
            return self._messages.put_first("verdict", *verdict.values())
        return True

    def verdict(self) -> Verdict | None:
        """Return the first verdict, None while there is none.

        Raises:
            ForeignMessage: Another process wrote a value that is not a verdict.
        """
        values = self._messages.get("verdict")
        if not values:
            return None
        return _parsed(Verdict.parse, values)

    def leave(self) -> None:
        """Tell the other ranks that this one leaves the store."""
        self._messages.put(f"left/{self._rank}")

    def has_left(self, rank: int) -> bool:
        """Whether a rank has left the store."""
        return self._messages.get(f"left/{rank}") is not None


def _parse_failure(values: list[Any]) -> tuple[int, str]:
    return as_type(values, tuple[int, str])


def _parsed(parse: Callable[[list[Any]], Content], values: list[Any]) -> Content:
    """Parse a message, turning the parser's TypeError or ValueError into ForeignMessage."""
    try:
        return parse(values)
    except (TypeError, ValueError) as error:
        raise ForeignMessage(str(error)) from error
