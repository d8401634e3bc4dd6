"""Opens and verifies the weights of training.init_from."""

from pathlib import Path
from typing import Any, NamedTuple

from megatape.checkpoint.format.hashed_files import hash_file
from megatape.checkpoint.format.records import FileRecord
from megatape.checkpoint.format.stored_weights import StoredWeights
from megatape.checkpoint.initial_weights import InitialWeights
from megatape.config import ModelConfig
from megatape.distributed.values.exchange import gather_values, on_each
from megatape.errors import path_errors
from megatape.registry import INITIAL_WEIGHTS
from megatape.run_environment import RunEnvironment


class OpenedWeights(NamedTuple):
    """Verified weights to start from.

    Attributes:
        weights: The weights.
        taken: Names of the parameters that start with them.
        base: Frozen ones among them, the base of the run's checkpoints. None without frozen weights.
    """

    weights: InitialWeights
    taken: set[str]
    base: StoredWeights | None


def open_initial_weights(directory: Path, model: ModelConfig, frozen: set[str], environment: RunEnvironment) -> OpenedWeights:
    """Open and verify the weights to start from. Each rank hashes a share of the files. Collective.

    Args:
        directory: Folder of the weights.
        model: Model configuration.
        frozen: Names of frozen parameters.
        environment: Run environment.

    Raises:
        UserError: On every rank, the weights are missing, corrupted or another model's.
    """
    topology = environment.topology

    @path_errors()
    def open_share() -> _OpenedShare:
        return _open_share(directory, model, frozen, environment)

    opened = on_each(open_share, topology, context="training.init_from: ")
    base = opened.base
    files = dict(base.files)
    for hashes in gather_values(opened.hashes, topology):
        for name, entry in hashes.items():
            files[name] = FileRecord(**entry)
    if not base.tensors:
        return OpenedWeights(opened.weights, opened.taken, None)
    return OpenedWeights(opened.weights, opened.taken, StoredWeights(base.directory, base.tensors, files))


class _OpenedShare(NamedTuple):
    """The weights to start from, and this rank's hashes of their files.

    Attributes:
        weights: The weights.
        taken: Names of the parameters that start with them.
        base: Frozen ones among them, without the hashes of other ranks.
        hashes: File -> size and hash, as JSON, for files of this rank's share without a recorded hash.
    """

    weights: InitialWeights
    taken: set[str]
    base: StoredWeights
    hashes: dict[str, dict[str, Any]]


def _open_share(directory: Path, model: ModelConfig, frozen: set[str], environment: RunEnvironment) -> _OpenedShare:
    """Open the weights, and verify this rank's share of their files.

    Raises:
        UserError, OSError: The weights are missing, corrupted or another model's.
    """
    topology = environment.topology
    weights: InitialWeights = INITIAL_WEIGHTS.load()(directory, environment.base)
    taken = weights.check_fits(model)
    stored = weights.stored()
    weights.verify(topology.rank, topology.world_size)
    base = stored.restricted(sorted(stored.tensors.keys() & frozen & taken))

    # An export has no record of hashes, so hash its files now.
    used = {record.file for record in base.tensors.values()}
    unhashed = sorted(used - base.files.keys())
    share = unhashed[topology.rank :: topology.world_size]
    hashes = {name: hash_file(base.directory / name).model_dump() for name in share}
    return _OpenedShare(weights, taken, base, hashes)
