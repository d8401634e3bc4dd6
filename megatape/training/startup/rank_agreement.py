"""Opens the data on all ranks, and checks that they agree on configuration, arguments, code and data."""

import socket
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from megatape.data.training.run_data import RunData
from megatape.distributed.topology import Topology
from megatape.distributed.values.exchange import gather_values
from megatape.distributed.values.rank_differences import find_disagreement
from megatape.errors import RankMismatch, UserError, marked_message
from megatape.imports import file_hashes
from megatape.registry import SINKS
from megatape.software import source_hash, versions
from megatape.utils.files.project_files import install_command

# Length of hashes in comparisons and messages.
HASH_LENGTH = 12


def open_together(
    settings: Mapping[str, Any],
    open_rank: Callable[[], RunData],
    sinks: Sequence[str],
    topology: Topology,
) -> RunData:
    """Open this rank's data, and check that all ranks agree. Collective.

    Args:
        settings: Name -> value in configuration or command line, on which all ranks must agree.
        open_rank: Opens this rank's data, after checks that need no other rank. May raise UserError or OSError.
        sinks: Names in logging.sinks. The main rank needs their packages.
        topology: All ranks.

    Raises:
        RankMismatch: A rank cannot open its data, or settings, code or data differ. Raised on all ranks.
    """
    data = None
    reason: str | None = None
    values = {**settings, **_code_versions()}
    try:
        data = open_rank()
        if topology.is_main:
            check_packages(sinks)
        values |= _data_hashes(data)
    except (UserError, OSError) as error:
        reason = marked_message(error)

    results = gather_values((socket.gethostname(), reason, values), topology)
    hosts, reasons, values_by_rank = zip(*results, strict=True)
    disagreement = find_disagreement(hosts, reasons, values_by_rank)
    if disagreement is not None:
        raise RankMismatch(disagreement)
    assert data is not None
    return data


def check_packages(sinks: Sequence[str]) -> None:
    """Check that the packages of sinks are installed.

    Raises:
        UserError: A package is missing.
    """
    for name in sinks:
        package = SINKS[name].package
        if package and find_spec(package) is None:
            raise UserError(
                f"logging.sinks has {name}, but its package {package} is not installed: install it by: "
                f"{install_command(package)}, or remove {name}"
            )


def _code_versions() -> dict[str, Any]:
    """Return description -> version of the code on this rank."""
    versions_by_name = {"the code's hash": source_hash()[:HASH_LENGTH], "Python/torch/DeepSpeed": versions()}
    for name, value in file_hashes().items():
        versions_by_name[f"the hash of the module {name}"] = value[:HASH_LENGTH]
    return versions_by_name


def _data_hashes(data: RunData) -> dict[str, str]:
    """Return description -> hash of this rank's data."""
    hashes = {f"the hash of the {name}": value[:HASH_LENGTH] for name, value in data.fingerprints.items()}
    for name, dataset in data.validation.items():
        description = "the hash of the validation data"
        if name:
            description += f" {name}"
        hashes[description] = dataset.fingerprint[:HASH_LENGTH]
    return hashes
