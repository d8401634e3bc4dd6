"""Opens a checkpoint that a run may continue from, sharing the verification between ranks."""

import logging
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError

from megatape.checkpoint.load.reader import CheckpointReader, verified_checkpoint
from megatape.distributed.values.exchange import gather_values, on_each
from megatape.errors import CheckpointError, PathError, marked_message, path_error
from megatape.reliability.goodput.parts import TimePart
from megatape.reliability.shared_folder import wait_until_visible
from megatape.run_environment import RunEnvironment
from megatape.utils.files.retries import retry_transient_errors

LOG = logging.getLogger(__name__)

# Errors raised while reading corrupted content.
CORRUPTION_ERRORS = (ValueError, KeyError, TypeError, RecursionError, SafetensorError)


def open_verified(directory: Path, environment: RunEnvironment) -> CheckpointReader | None:
    """Open a checkpoint and verify its files, each on one rank. Collective.

    Returns:
        The checkpoint, or None on every rank if one of them finds it corrupted. The main rank warns with the reason.

    Raises:
        PathError: On every rank, one of them cannot read the checkpoint.
        CheckpointError: On every rank, another version wrote it, or its base is missing or another one.
    """
    topology = environment.topology
    with environment.clock.measure(TimePart.VERIFICATION):
        opened = on_each(lambda: _open_share(directory, environment), topology)
        reasons = [reason for reason in gather_values(opened.corruption, topology) if reason is not None]
    if not reasons:
        return opened.reader
    if topology.is_main:
        for reason in dict.fromkeys(reasons):
            LOG.warning("checkpoint not used: %s", reason)
    return None


class _Opened(NamedTuple):
    """One rank's view of a checkpoint.

    Attributes:
        reader: Checkpoint reader, or None if the checkpoint is corrupted.
        corruption: Reason why it is corrupted, or None.
    """

    reader: CheckpointReader | None
    corruption: str | None = None


def _open_share(directory: Path, environment: RunEnvironment) -> _Opened:
    """Open a checkpoint and verify this rank's share of its files.

    Raises:
        PathError: The checkpoint cannot be read.
        CheckpointError: Another version wrote it, or its base is missing or another one. The checkpoint itself may be fine.
    """
    topology = environment.topology

    def verify() -> CheckpointReader:
        return verified_checkpoint(directory, environment.base, topology.rank, topology.world_size)

    try:
        if not wait_until_visible(directory):
            raise PathError("it is not visible here")
        return _Opened(retry_transient_errors(verify))
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        return _Opened(None, str(error))
    except OSError as error:
        advice = "Nothing was changed: once the folder can be read, start again"
        raise path_error(error, f"checkpoint {directory} cannot be read: {marked_message(error)}. {advice}") from error
    except CORRUPTION_ERRORS as error:
        return _Opened(None, str(error))
