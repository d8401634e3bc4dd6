"""Removes old checkpoints."""

import shutil
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from megatape.checkpoint.format.manifest import load_manifest
from megatape.checkpoint.save.partial_folder import hide
from megatape.run_environment import RunEnvironment
from megatape.run_folder import ROLLED_BACK, named_step


def prune(
    environment: RunEnvironment, newest: Path, keep: int, protected: Callable[[Iterable[int], int], Collection[int]]
) -> None:
    """Remove old checkpoints of a run, and those moved aside by a rollback, because `newest` replaces them.

    Corrupted checkpoints do not count as kept, and are not removed.

    Args:
        environment: Run environment.
        newest: Checkpoint that was just written.
        keep: Complete checkpoints to keep, newest first.
        protected: Returns steps of further checkpoints to keep, given the steps of all complete checkpoints and that of
            `newest`.
    """
    complete = []
    for path in environment.folder.list_checkpoints():
        with suppress(OSError, ValueError):
            load_manifest(path)
            complete.append(path)

    newest_step = named_step(newest)
    steps = [named_step(path) for path in complete]
    protected_steps = {newest_step, *protected(steps, newest_step)}
    old = [path for path in complete[keep:] if named_step(path) not in protected_steps]
    old += environment.folder.checkpoints.glob(f"step-*{ROLLED_BACK}")
    for path in old:
        hidden = hide(path, environment.lease)
        if hidden is not None:
            shutil.rmtree(hidden)
