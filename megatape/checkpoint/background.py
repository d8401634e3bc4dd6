"""Writing a checkpoint while training goes on."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

import torch.distributed as dist

from megatape.errors import UserError
from megatape.runtime.watch import BACKGROUND_GROUP
from megatape.zero.snapshot import Snapshot

COLLECTIVE_ERRORS = (OSError, UserError)  # of a save or of training: raised on all ranks alike


class Background:
    """A thread that writes from `snapshot`, one checkpoint at a time. Made and used by all ranks alike.

    Its collectives have a process group of their own: in that of training they would mix with those of the steps.
    """

    def __init__(self) -> None:
        self.snapshot = Snapshot(dist.new_group(backend="gloo", group_desc=BACKGROUND_GROUP))
        self._saving: Future[Path] | None = None

    @property
    def in_flight(self) -> bool:
        """Whether a checkpoint was begun and not yet finished. The same on all ranks."""
        return self._saving is not None

    def has_ended(self) -> bool:
        """Whether this rank's share of it is done, so that `finish` would not wait.

        Raises an error that the other ranks do not share, and that would leave them waiting.
        """
        if self._saving is None or not self._saving.done():
            return False
        error = self._saving.exception()
        if error and not isinstance(error, COLLECTIVE_ERRORS):
            raise error
        return True

    def start(self, write: Callable[[], Path]) -> None:
        """Let the thread write a checkpoint from the snapshot, which must not change until `finish`."""
        assert self._saving is None, "the snapshot is still being written"
        saving = self._saving = Future[Path]()

        def work() -> None:
            try:
                saving.set_result(write())
            except BaseException as error:  # noqa: BLE001 (it is raised where the run sees it)
                saving.set_exception(error)

        # A daemon: a rank whose training failed ends, even if others no longer take part in this.
        Thread(target=work, name="save", daemon=True).start()

    def finish(self) -> Path:
        """Wait for the checkpoint and return its folder, or raise what kept it from being written."""
        assert self._saving is not None
        saving, self._saving = self._saving, None
        return saving.result()
