"""Choosing a checkpoint to go on from."""

import sys
from pathlib import Path

from safetensors import SafetensorError

from megatape.checkpoint.manifest import UnknownFormat, check_hashes
from megatape.checkpoint.reader import CheckpointReader
from megatape.run_folder import RunFolder
from megatape.runtime.exchange import exchange
from megatape.runtime.shared_folder import appears
from megatape.runtime.topology import Topology
from megatape.zero.engine import Engine


def newest_valid(folder: RunFolder, engine: Engine, topology: Topology) -> CheckpointReader | None:
    """The newest checkpoint of the run whose files all have their size and hash; says which ones it had to skip.

    None if there is no checkpoint at all. Raises ValueError if there are some but none is valid: starting afresh would
    overwrite what may be saved yet."""
    # What the main rank sees: ranks that looked for themselves could see different ones through a network file system.
    names = exchange([path.name for path in folder.list_checkpoints()] if topology.is_main else None, topology)[0]
    found = [folder.checkpoints / name for name in names]
    for directory in found:
        reader = _open_verified(directory, engine, topology)
        if reader is not None:
            return reader
    if found:
        raise ValueError(
            f"{folder.checkpoints}: none of the {len(found)} checkpoints is valid (above); repair or remove them, or choose another run.directory"
        )
    return None


def open_checkpoint(directory: Path, engine: Engine, topology: Topology) -> CheckpointReader:
    """The checkpoint in `directory`. Raises FileNotFoundError or ValueError if there is none or it is corrupted."""
    reader = CheckpointReader(directory)
    if _open_verified(directory, engine, topology) is None:
        raise ValueError(
            f"{directory} is corrupted (above); give another checkpoint, or --resume auto for the newest valid one"
        )
    return reader


def _open_verified(directory: Path, engine: Engine, topology: Topology) -> CheckpointReader | None:
    """Open and hash with all ranks, each its share of the files; None on all of them when one finds a fault."""
    reader, faults = None, 0
    try:
        appears(directory)
        reader = CheckpointReader(directory)
        check_hashes(directory, reader.manifest, topology.rank, topology.world_size)
    except UnknownFormat:
        raise
    except (ValueError, KeyError, OSError, SafetensorError) as error:
        faults = 1
        if reader is not None or topology.is_main:
            print(f"checkpoint not used: {error}", file=sys.stderr, flush=True)
    return None if engine.sum_over_ranks(faults) else reader
