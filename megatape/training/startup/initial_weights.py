"""Opens and verifies the weights of training.init_from."""

from pathlib import Path
from typing import Any

from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.hashed_files import hash_file
from megatape.checkpoint.initial_weights import InitialWeights
from megatape.checkpoint.records import FileRecord
from megatape.checkpoint.tensors import StoredWeights
from megatape.config import ModelConfig
from megatape.distributed.values.exchange import on_all
from megatape.errors import path_errors
from megatape.registry import INITIAL_WEIGHTS


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
        The weights, and the frozen ones among them: the base of the run's checkpoints, None without frozen weights.
    """
    share = _Share(directory, model, frozen, environment)
    hashes_of_ranks = on_all(path_errors()(share.open), environment.topology, context="training.init_from: ")
    assert share.weights is not None and share.base is not None
    files = dict(share.base.files)
    for hashes in hashes_of_ranks:
        for name, entry in hashes.items():
            files[name] = FileRecord(**entry)
    if not share.base.tensors:
        return share.weights, None
    return share.weights, StoredWeights(share.base.directory, share.base.tensors, files)


class _Share:
    """The weights to start from, and this rank's share of their files to hash.

    Attributes:
        weights: The weights, None before `open`.
        base: Frozen ones among them, None before `open`.
    """

    def __init__(self, directory: Path, model: ModelConfig, frozen: set[str], environment: RunEnvironment) -> None:
        self.weights: InitialWeights | None = None
        self.base: StoredWeights | None = None
        self._directory = directory
        self._model = model
        self._frozen = frozen
        self._environment = environment

    def open(self) -> dict[str, dict[str, Any]]:
        """Open the weights, and verify this rank's share of their files.

        Returns:
            File -> size and hash, as JSON, for files of this share without a recorded hash.

        Raises:
            UserError, OSError: The weights are missing, corrupted or another model's.
        """
        topology = self._environment.topology
        weights: InitialWeights = INITIAL_WEIGHTS.load()(self._directory, self._environment.base)
        taken = weights.check_fits(self._model)
        stored = weights.stored()
        weights.verify(topology.rank, topology.world_size)
        base = stored.restricted(sorted(stored.tensors.keys() & self._frozen & taken))
        self.weights = weights
        self.base = base

        # An export has no record of hashes, so hash its files now.
        used = {record.file for record in base.tensors.values()}
        unhashed = sorted(used - base.files.keys())
        share = unhashed[topology.rank :: topology.world_size]
        return {name: hash_file(base.directory / name).model_dump() for name in share}
