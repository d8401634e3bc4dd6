"""Writing of checkpoints in the background, while training goes on."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

import torch.distributed as dist

from megatape.checkpoint.writer import COLLECTIVE_ERRORS
from megatape.reliability.watch.heartbeat import BACKGROUND_GROUP
from megatape.zero.snapshot import Snapshot


class Background:
    """Thread that writes one checkpoint at a time from a snapshot. All ranks make one, and use it alike.

    Its collectives have a process group of their own. In the group of training they would mix with those of the steps.

    Attributes:
        snapshot: Copy of the state that the thread writes.
    """

    def __init__(self) -> None:
        self.snapshot = Snapshot(dist.new_group(backend="gloo", group_desc=BACKGROUND_GROUP))
        self._saving: Future[Path] | None = None

    @property
    def in_flight(self) -> bool:
        """Whether a save was started and not finished yet. The same on all ranks."""
        return self._saving is not None

    def has_ended(self) -> bool:
        """Whether this rank's share of the save in flight is done, so that `finish` would not wait.

        Raises an error that the other ranks do not share, and that would leave them waiting.
        """
        if self._saving is None or not self._saving.done():
            return False
        error = self._saving.exception()
        if error is not None and not isinstance(error, COLLECTIVE_ERRORS):
            raise error
        return True

    def start(self, write: Callable[[], Path]) -> None:
        """Start a save.

        Args:
            write: Writes the checkpoint from the snapshot, which must not change until `finish`.
        """
        assert self._saving is None, "the snapshot is still being written"
        saving = Future[Path]()
        self._saving = saving

        def work() -> None:
            try:
                saving.set_result(write())
            except BaseException as error:  # noqa: BLE001 (it is raised where the run sees it)
                saving.set_exception(error)

        # A daemon, so that a rank whose training fails can end while other ranks no longer take part in the save.
        Thread(target=work, name="save", daemon=True).start()

    def finish(self) -> Path:
        """Wait for the save in flight. Returns the checkpoint, or raises the error of the save."""
        assert self._saving is not None
        saving = self._saving
        self._saving = None
        return saving.result()
