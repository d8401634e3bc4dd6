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


def open_initial_weights(
    directory: Path, model: ModelConfig, frozen: set[str], environment: RunEnvironment
) -> tuple[InitialWeights, StoredWeights | None]:
    """Open and verify the weights to start from. Each rank hashes a share of the files. Collective.

    Args:
        directory: Folder of the weights.
        model: Model configuration.
        frozen: Names of frozen parameters.
        environment: Run environment.

    Returns:
        The weights, and the frozen ones among them: the base of the run's checkpoints, or None without frozen weights.
    """
    topology = environment.topology

    @path_errors()
    def open_share() -> _Opened:
        return _open_share(directory, model, frozen, environment)

    opened = on_each(open_share, topology, context="training.init_from: ")
    base = opened.base
    files = dict(base.files)
    for hashes in gather_values(opened.hashes, topology):
        for name, entry in hashes.items():
            files[name] = FileRecord(**entry)
    if not base.tensors:
        return opened.weights, None
    return opened.weights, StoredWeights(base.directory, base.tensors, files)


class _Opened(NamedTuple):
    """The weights to start from, and this rank's hashes of their files.

    Attributes:
        weights: The weights.
        base: Frozen ones among them.
        hashes: File -> size and hash, as JSON, for files of this rank's share without a recorded hash.
    """

    weights: InitialWeights
    base: StoredWeights
    hashes: dict[str, dict[str, Any]]


def _open_share(directory: Path, model: ModelConfig, frozen: set[str], environment: RunEnvironment) -> _Opened:
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
    return _Opened(weights, base, hashes)
