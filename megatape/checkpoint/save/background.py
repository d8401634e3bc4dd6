"""Writes checkpoints in the background while training continues."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import torch.distributed as dist

from megatape.checkpoint.save.writer import COLLECTIVE_ERRORS
from megatape.reliability.watch.heartbeat import BACKGROUND_GROUP
from megatape.zero.state.snapshot import Snapshot


@dataclass(frozen=True)
class SaveInFlight:
    """Save in the background that is not finished yet.

    Attributes:
        step: Step being saved.
        waited: Seconds that training waited for the save to start.
        result: The checkpoint, or the error that ended the save.
    """

    step: int
    waited: float
    result: Future[Path] = field(default_factory=Future)


class Background:
    """Thread writing one checkpoint at a time from a snapshot. Every rank has one, and all use it alike.

    Saves have their own process group: in the group that training uses, their collectives would mix with those of steps.

    Attributes:
        snapshot: Copy of the state being written.
        in_flight: Save in flight, or None without one. All ranks have one or none.
    """

    def __init__(self) -> None:
        self.snapshot = Snapshot(dist.new_group(backend="gloo", group_desc=BACKGROUND_GROUP))
        self.in_flight: SaveInFlight | None = None

    def has_ended(self) -> bool:
        """Whether this rank has done its share in the save in flight, so that `finish` would not wait.

        Raises errors of this rank alone, because the other ranks would wait for it forever.
        """
        if self.in_flight is None or not self.in_flight.result.done():
            return False
        error = self.in_flight.result.exception()
        if error is not None and not isinstance(error, COLLECTIVE_ERRORS):
            raise error
        return True

    def start(self, save: SaveInFlight, write: Callable[[], Path]) -> None:
        """Start a save.

        Args:
            save: The save, still without a result.
            write: Writes the checkpoint from the snapshot, which must not change until `finish`.
        """
        assert self.in_flight is None, "the snapshot is still being written"
        self.in_flight = save

        def work() -> None:
            try:
                save.result.set_result(write())
            except BaseException as error:  # noqa: BLE001 (`finish` raises it in the training thread)
                save.result.set_exception(error)

        # A daemon thread lets a failing rank exit even if the other ranks have left the save.
        Thread(target=work, name="save", daemon=True).start()

    def finish(self) -> Path:
        """Wait for the save in flight. Returns the checkpoint, or raises the save's error."""
        assert self.in_flight is not None
        save = self.in_flight
        self.in_flight = None
        return save.result.result()
