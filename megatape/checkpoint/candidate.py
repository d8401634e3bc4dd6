"""Opens a checkpoint that a run may continue from, sharing the verification between ranks."""

import logging
from pathlib import Path

from safetensors import SafetensorError

from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.reader import CheckpointReader, verified_checkpoint
from megatape.distributed.values.exchange import on_all
from megatape.errors import CheckpointError, PathError, path_error
from megatape.reliability.shared_folder import wait_until_visible
from megatape.utils.retries import retry_transient_errors

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
    candidate = Candidate(directory, environment)
    reasons = [reason for reason in on_all(candidate.find_corruption, topology) if reason is not None]
    if not reasons:
        return candidate.reader
    if topology.is_main:
        for reason in dict.fromkeys(reasons):
            LOG.warning("checkpoint not used: %s", reason)
    return None


class Candidate:
    """Checkpoint that a run may continue from, as one rank sees it.

    Args:
        directory: Checkpoint folder.
        environment: Run environment.

    Attributes:
        reader: Checkpoint reader, None until `find_corruption` has opened it.
    """

    def __init__(self, directory: Path, environment: RunEnvironment) -> None:
        self.reader: CheckpointReader | None = None
        self._directory = directory
        self._environment = environment

    def find_corruption(self) -> str | None:
        """Open the checkpoint and verify this rank's share.

        Returns:
            Reason why the checkpoint is corrupted, or None if it is not.

        Raises:
            PathError: The checkpoint cannot be read.
            CheckpointError: Another version wrote it, or its base is missing or another one. The checkpoint itself may be fine.
        """
        try:
            if not wait_until_visible(self._directory):
                raise PathError("it is not seen here")
            self.reader = retry_transient_errors(self._open_share)
        except CheckpointError:
            raise
        except FileNotFoundError as error:
            return str(error)
        except OSError as error:
            advice = "Nothing was changed: once the folder can be read, start again"
            raise path_error(error, f"checkpoint {self._directory} cannot be read: {error}. {advice}") from error
        except CORRUPTION_ERRORS as error:
            return str(error)
        return None

    def _open_share(self) -> CheckpointReader:
        topology = self._environment.topology
        return verified_checkpoint(self._directory, self._environment.base, topology.rank, topology.world_size)
