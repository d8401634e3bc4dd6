"""Choosing a checkpoint to continue from."""

import logging
from pathlib import Path

from safetensors import SafetensorError

from megatape.checkpoint.reader import CheckpointReader
from megatape.errors import CheckpointError, PathError, UserError, path_error
from megatape.files import retry_transient_errors, sync
from megatape.run_folder import RunFolder
from megatape.runtime.exchange import on_all, on_main
from megatape.runtime.shared_folder import wait_until_visible
from megatape.runtime.topology import Topology

LOG = logging.getLogger(__name__)


def newest_valid(folder: RunFolder, topology: Topology, base: Path | None) -> tuple[CheckpointReader | None, list[Path]]:
    """The newest checkpoint of the run whose files all have their size and hash, and the newer ones that are corrupted.

    base: as CheckpointReader takes it. None if the run never saved a checkpoint. Collective over all ranks. Raises on all of
    them UserError if there are checkpoints but none is valid, or if there are none but there were: starting from step 0 would
    overwrite what can still be saved. So it does if a checkpoint's base is not there or another one. Raises PathError if a
    checkpoint cannot be read.
    """
    # What the main rank sees: ranks that looked for themselves could see different ones through a network file system.
    names = on_main(lambda: retry_transient_errors(lambda: [path.name for path in folder.list_checkpoints()]), topology)
    reader, corrupted = first_valid([folder.checkpoints / name for name in names], topology, base)
    if corrupted and reader is None:
        raise UserError(
            f"{folder.checkpoints}: none of the {len(corrupted)} checkpoints is valid (above); repair or remove them, or "
            "choose another run.directory"
        )
    return reader, corrupted


def first_valid(directories: list[Path], topology: Topology, base: Path | None) -> tuple[CheckpointReader | None, list[Path]]:
    """The first of these checkpoints whose files all have their size and hash, None if none has, and those before it.

    Collective. base: as CheckpointReader takes it. Raises on all ranks as `newest_valid` does for one that cannot be judged.
    """
    for number, directory in enumerate(directories):
        reader = _open_verified(directory, topology, base)
        if reader is not None:
            return reader, directories[:number]
    return None, directories


def open_checkpoint(directory: Path, topology: Topology, base: Path | None) -> CheckpointReader:
    """The checkpoint in `directory`. base: as CheckpointReader takes it.

    Raises FileNotFoundError or UserError if there is none or it is corrupted, or if its base is not there or another one.
    """
    CheckpointReader(directory, base)
    reader = _open_verified(directory, topology, base)
    if reader is None:
        raise UserError(f"{directory} is corrupted (above); give another checkpoint, or --resume auto for the newest valid one")
    return reader


def set_aside(checkpoints: list[Path], suffix: str) -> None:
    """Rename checkpoints that the run does not continue from: it will write its own there, and keeping must not count them."""
    for path in filter(Path.exists, checkpoints):
        aside = path.with_name(path.name + suffix)
        while aside.exists():  # the same step was set aside before
            aside = aside.with_name(aside.name + suffix)
        path.rename(aside)
        sync(path.parent)
        LOG.warning("%s renamed to %s", path.name, aside.name)


def _open_verified(directory: Path, topology: Topology, base: Path | None) -> CheckpointReader | None:
    """Open and hash with all ranks, each its share of the files; None on all of them when one finds a fault.

    Raises on all ranks PathError if one cannot read it, and CheckpointError for another version's or without its base: these
    say nothing about the content.
    """
    reader = None

    def open_and_hash() -> None:
        nonlocal reader
        reader = CheckpointReader(directory, base)
        reader.verify(topology.rank, topology.world_size)

    def verify() -> str:
        try:
            if not wait_until_visible(directory):
                raise PathError("it is not seen here")
            retry_transient_errors(open_and_hash)
        except CheckpointError:
            raise
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                again = "Nothing was changed: once the folder can be read, start again"
                raise path_error(error, f"checkpoint {directory} cannot be read: {error}. {again}") from error
            return str(error)
        except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            return str(error)
        return ""

    corrupted = dict.fromkeys(text for text in on_all(verify, topology) if text)
    if topology.is_main:
        for text in corrupted:
            LOG.warning("checkpoint not used: %s", text)
    return None if corrupted else reader
