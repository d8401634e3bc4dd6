"""What all ranks do first, together: open the data, and find out whether all of them were given the same."""

import json
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from megatape.checkpoint.manifest import load_manifest
from megatape.config import Config, shared_values
from megatape.data.training.splits import RunData, open_data
from megatape.errors import RankMismatch, UserError
from megatape.imports import file_hashes
from megatape.registry import SINKS
from megatape.runtime.exchange import exchange
from megatape.runtime.software import source_hash, versions
from megatape.runtime.topology import Topology, name_ranks


def open_together(config: Config, arguments: dict[str, Any], topology: Topology) -> RunData:
    """Open this rank's data. Collective.

    arguments: those of the command line beside the configuration, by name.
    Raises RankMismatch on all ranks if one of them cannot open its data, or if configuration, arguments, code or data differ
    between ranks.
    """
    data, fault = None, ""
    found = shared_values(config) | arguments | {"the code's hash": source_hash()[:12], "Python/torch/DeepSpeed": versions()}
    found |= {f"the hash of the module {name}": value[:12] for name, value in file_hashes().items()}
    try:
        config.accumulation(topology.world_size)
        if arguments["resume"] not in (None, "auto"):
            load_manifest(Path(arguments["resume"]))
        data = open_data(config)
        if topology.is_main:
            check_packages(config)
        found |= {f"the hash of the {name}": value[:12] for name, value in data.fingerprints.items()}
        found |= {
            f"the hash of the validation data{f' {name}' * bool(name)}": split.fingerprint[:12]
            for name, split in data.validation.items()
        }
    except (UserError, OSError) as error:
        fault = str(error)
    everyone = exchange({"host": socket.gethostname(), "fault": fault, "found": found}, topology)
    disagreement = find_disagreement(everyone)
    if disagreement:
        raise RankMismatch(disagreement)
    assert data
    return data


def check_packages(config: Config) -> None:
    """Check that the packages of logging.sinks are installed.

    Raises:
        UserError: One is not.
    """
    for name in config.logging.sinks:
        if (package := SINKS[name].package) and find_spec(package) is None:
            raise UserError(
                f"logging.sinks has {name}, but its package {package} is not installed: install it by: pip install -c "
                f"constraints.txt -e .[{package}], or remove {name}"
            )


def find_disagreement(everyone: list[dict[str, Any]]) -> str:
    """What keeps the ranks from training together, or "".

    everyone: by rank, its host, its fault or "", and the values that must be equal on all ranks, by name; a value that a rank
    could not find is left out.
    """
    faults = _by_value({rank: entry["fault"] for rank, entry in enumerate(everyone)})
    if len(faults) == 1 and "" not in faults:
        return next(iter(faults))  # what all ranks see needs no ranks in the message
    told = [f"{_name(ranks, everyone)}: {fault}" for fault, ranks in faults.items() if fault]
    names = dict.fromkeys(name for entry in everyone for name in entry["found"])
    for name in names:
        values = _by_value(
            {rank: json.dumps(entry["found"][name]) for rank, entry in enumerate(everyone) if name in entry["found"]}
        )
        if len(values) > 1:
            told.append(f"{name} is " + ", ".join(f"{value} on {_name(ranks, everyone)}" for value, ranks in values.items()))
    if not told:
        return ""
    return f"the ranks cannot train together: {'; '.join(told)}. Give all of them the same command, code and data"


def _by_value(values: dict[int, str]) -> dict[str, list[int]]:
    """The ranks that have each value."""
    ranks: dict[str, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return ranks


def _name(ranks: list[int], everyone: list[dict[str, Any]]) -> str:
    """The ranks, and the host of the first one."""
    return (
        f"{name_ranks(ranks)} ({everyone[ranks[0]]['host']}{', ...' if len({everyone[r]['host'] for r in ranks}) > 1 else ''})"
    )
