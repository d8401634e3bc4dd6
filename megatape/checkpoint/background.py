"""Writing of checkpoints in the background, while training goes on."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import torch.distributed as dist

from megatape.checkpoint.writer import COLLECTIVE_ERRORS
from megatape.reliability.watch.heartbeat import BACKGROUND_GROUP
from megatape.zero.snapshot import Snapshot


@dataclass(frozen=True)
class SaveInFlight:
    """A save that was started in the background and is not finished yet.

    Attributes:
        step: Step that is saved.
        waited: Seconds that training waited while the save was started.
        result: The checkpoint, or the error of the save.
    """

    step: int
    waited: float
    result: Future[Path] = field(default_factory=Future)


class Background:
    """Thread that writes one checkpoint at a time from a snapshot. All ranks make one, and use it alike.

    Its collectives have a process group of their own. In the group of training they would mix with those of the steps.

    Attributes:
        snapshot: Copy of the state that the thread writes.
        in_flight: The save in flight, None without one. All ranks have one or none.
    """

    def __init__(self) -> None:
        self.snapshot = Snapshot(dist.new_group(backend="gloo", group_desc=BACKGROUND_GROUP))
        self.in_flight: SaveInFlight | None = None

    def has_ended(self) -> bool:
        """Whether this rank's share of the save in flight is done, so that `finish` would not wait.

        Raises an error that the other ranks do not share, and that would leave them waiting.
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
            save: The save, without a result.
            write: Writes the checkpoint from the snapshot, which must not change until `finish`.
        """
        assert self.in_flight is None, "the snapshot is still being written"
        self.in_flight = save

        def work() -> None:
            try:
                save.result.set_result(write())
            except BaseException as error:  # noqa: BLE001 (it is raised where the run sees it)
                save.result.set_exception(error)

        # A daemon, so that a rank whose training fails can end while other ranks no longer take part in the save.
        Thread(target=work, name="save", daemon=True).start()

    def finish(self) -> Path:
        """Wait for the save in flight. Returns the checkpoint, or raises the error of the save."""
        assert self.in_flight is not None
        save = self.in_flight
        self.in_flight = None
        return save.result.result()
