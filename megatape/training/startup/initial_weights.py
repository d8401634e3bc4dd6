"""Opens and verifies the weights of training.init_from."""

from pathlib import Path
from typing import Any

from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.hashed_files import hash_file
from megatape.checkpoint.initial_weights import InitialWeights
from megatape.checkpoint.records import FileRecord
from megatape.checkpoint.tensors import StoredWeights
from megatape.config import ModelConfig
from megatape.distributed.exchange import on_all
from megatape.errors import path_errors
from megatape.registry import INITIAL_WEIGHTS


def open_initial_weights(
    directory: Path, model: ModelConfig, frozen: set[str], environment: RunEnvironment
) -> tuple[InitialWeights, StoredWeights | None]:
    """Open and verify the weights to start from. Each rank hashes its share of the files. Collective.

    Args:
        directory: Folder of the weights.
        model: Model section of the run.
        frozen: Names of the frozen parameters.
        environment: Environment of the run.

    Returns:
        The weights, and those of them that are frozen: the base of the run's checkpoints, None if there are none.
    """
    weights = None
    base = None
    topology = environment.topology

    def verify() -> dict[str, dict[str, Any]]:
        nonlocal weights, base
        weights = INITIAL_WEIGHTS.load()(directory, environment.base)
        taken = weights.check_fits(model)
        stored = weights.stored()
        weights.verify(topology.rank, topology.world_size)
        base = stored.restricted(sorted(stored.tensors.keys() & frozen & taken))

        # An export has no record of hashes, so hash its files now.
        used = {record.file for record in base.tensors.values()}
        unhashed = sorted(used - base.files.keys())
        return {name: hash_file(base.directory / name).model_dump() for name in unhashed[topology.rank :: topology.world_size]}

    shares = on_all(path_errors()(verify), topology, context="training.init_from: ")
    assert weights is not None and base is not None
    files = dict(base.files)
    for share in shares:
        for name, entry in share.items():
            files[name] = FileRecord(**entry)
    base.files = files
    if not base.tensors:
        return weights, None
    return weights, base
