"""Selects the checkpoint to continue from when resuming or rolling back."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from megatape.checkpoint.load.candidate import open_verified
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.errors import UserError, flag
from megatape.run_environment import RunEnvironment
from megatape.run_folder import CORRUPTED, ROLLED_BACK, named_step
from megatape.utils.files.atomic import rename
from megatape.utils.files.files import sync

LOG = logging.getLogger(__name__)


def open_named(directory: Path, environment: RunEnvironment, check: Callable[[CheckpointReader], None]) -> CheckpointReader:
    """Open a checkpoint that the user named for resuming. Collective.

    Args:
        directory: Checkpoint folder.
        environment: Run environment.
        check: Raises UserError on every rank if the run must not continue from the checkpoint.

    Raises:
        UserError, FileNotFoundError: The checkpoint is not valid, or the run has newer ones.
        OSError: The checkpoint cannot be read.
    """
    reader = _open(directory, environment)
    # Only the main rank lists checkpoints: through a network file system, ranks could see different ones.
    newer = environment.on_main(lambda: [path.name for path in _newer_checkpoints(reader, environment)])
    if newer:
        raise UserError(
            f"run.directory {environment.folder.directory} holds checkpoints newer than {reader.directory} (up to "
            f"{newer[0]}), which resuming there would mix with its own: choose another run.directory, or remove them"
        )
    check(reader)
    return reader


def find_newest(environment: RunEnvironment, check: Callable[[CheckpointReader], None]) -> CheckpointReader | None:
    """Find a run's newest valid checkpoint, and move newer, corrupted ones aside. Collective.

    Args:
        environment: Run environment.
        check: Raises UserError on every rank if the run must not continue from the checkpoint.

    Returns:
        The checkpoint, or None if the run has no checkpoints at all.

    Raises:
        UserError: No checkpoint is valid.
        OSError: A checkpoint cannot be read.
    """
    folder = environment.folder
    # Only the main rank lists checkpoints: through a network file system, ranks could see different ones.
    names = environment.on_main(lambda: [path.name for path in folder.list_checkpoints()])
    reader, corrupted = _first_valid(names, environment)
    if reader is None:
        if corrupted:
            # Starting from step 0 would overwrite checkpoints that could still be repaired.
            raise UserError(
                f"{folder.checkpoints}: none of the {len(corrupted)} checkpoints is valid (above); repair or remove them, or "
                "choose another run.directory"
            )
        return None
    check(reader)
    environment.on_main(lambda: _move_aside(corrupted, CORRUPTED))
    return reader


def find_stable_checkpoint(
    environment: RunEnvironment, stable: Callable[[Iterable[int]], list[int]]
) -> CheckpointReader | None:
    """Find the checkpoint for a rollback: the newest stable one that is valid. Collective.

    Newer checkpoints are moved aside, because resuming from one of them would undo the rollback. So are corrupted ones. If no
    stable checkpoint is valid, nothing is moved and the run continues. If it dies before its next save, resuming is refused as
    long as the corrupted checkpoints are in place (find_newest). Without them it would start from step 0.

    Args:
        environment: Run environment.
        stable: Returns the steps of stable checkpoints, newest first, given the steps of all checkpoints.

    Returns:
        The checkpoint, or None if no stable one is valid.
    """

    def stable_names() -> list[str]:
        names = {named_step(path): path.name for path in environment.folder.list_checkpoints()}
        return [names[step] for step in stable(names)]

    reader, corrupted = _first_valid(environment.on_main(stable_names), environment)
    if reader is None:
        return None

    def move_others_aside() -> None:
        _move_aside(corrupted, CORRUPTED)
        _move_aside(_newer_checkpoints(reader, environment), ROLLED_BACK)
        environment.folder.mark_latest(reader.directory)

    environment.on_main(move_others_aside)
    return reader


def _first_valid(names: list[str], environment: RunEnvironment) -> tuple[CheckpointReader | None, list[Path]]:
    """Find the first valid checkpoint. Collective.

    Args:
        names: Checkpoint names, preferred ones first.
        environment: Run environment.

    Returns:
        The checkpoint, or None if none is valid, and the corrupted checkpoints before it.

    Raises:
        CheckpointError: On every rank, another version wrote a checkpoint, or its base is missing or another one.
        PathError: On every rank, a checkpoint cannot be read.
    """
    directories = [environment.folder.checkpoints / name for name in names]
    for number, directory in enumerate(directories):
        reader = open_verified(directory, environment)
        if reader is not None:
            return reader, directories[:number]
    return None, directories


def _open(directory: Path, environment: RunEnvironment) -> CheckpointReader:
    """Open and verify a checkpoint that the user named. Collective.

    Raises:
        FileNotFoundError: On every rank, the main rank finds no checkpoint.
        UserError: On every rank, it is corrupted, or its base is missing or another one.
    """

    def check_opens() -> None:
        # Do not return the reader: `on_main` would send it to the other ranks.
        CheckpointReader(directory, environment.base)

    environment.on_main(check_opens)
    reader = open_verified(directory, environment)
    if reader is None:
        raise UserError(
            f"{directory} is corrupted (above); give another checkpoint, or {flag('resume')} auto for the newest valid one"
        )
    return reader


def _newer_checkpoints(reader: CheckpointReader, environment: RunEnvironment) -> list[Path]:
    """Return the run's checkpoints with later steps than the given one."""
    return [path for path in environment.folder.list_checkpoints() if named_step(path) > reader.step]


def _move_aside(checkpoints: list[Path], suffix: str) -> None:
    """Rename checkpoints that the run does not continue from.

    The run will write checkpoints for the same steps, and must not count the renamed ones as kept.

    Args:
        checkpoints: Folders to rename, as far as they exist.
        suffix: Suffix to append, again while a folder with the new name exists.
    """
    for path in checkpoints:
        if not path.exists():
            continue
        aside = path.with_name(path.name + suffix)
        while aside.exists():
            aside = aside.with_name(aside.name + suffix)
        rename(path, aside)
        sync(path.parent)
        LOG.warning("%s renamed to %s", path.name, aside.name)
