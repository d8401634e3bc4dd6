"""What all ranks do first, together: open the data, and find out whether all of them were given the same."""

import json
import socket
from collections import defaultdict
from collections.abc import Sequence
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
from megatape.runtime.software import install_command, source_hash, versions
from megatape.runtime.topology import Topology, name_ranks


def open_together(config: Config, arguments: dict[str, Any], topology: Topology) -> RunData:
    """Open this rank's data. Collective.

    Args:
        config: of the run.
        arguments: of the command line beside the configuration, by name.
        topology: all ranks.

    Raises:
        RankMismatch: on all ranks, one of them cannot open its data, or configuration, arguments, code or data differ between
            ranks.
    """
    data, fault = None, ""
    values = shared_values(config) | arguments | {"the code's hash": source_hash()[:12], "Python/torch/DeepSpeed": versions()}
    values |= {f"the hash of the module {name}": value[:12] for name, value in file_hashes().items()}
    try:
        config.accumulation(topology.world_size)
        if arguments["resume"] not in (None, "auto"):
            load_manifest(Path(arguments["resume"]))
        data = open_data(config)
        if topology.is_main:
            check_packages(config)
        values |= {f"the hash of the {name}": value[:12] for name, value in data.fingerprints.items()}
        values |= {
            f"the hash of the validation data{f' {name}' * bool(name)}": split.fingerprint[:12]
            for name, split in data.validation.items()
        }
    except (UserError, OSError) as error:
        fault = str(error)
    hosts, faults, values_of_ranks = zip(*exchange([socket.gethostname(), fault, values], topology), strict=True)
    if disagreement := find_disagreement(hosts, faults, values_of_ranks):
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
                f"logging.sinks has {name}, but its package {package} is not installed: install it by: "
                f"{install_command(package)}, or remove {name}"
            )


def find_disagreement(hosts: Sequence[str], faults: Sequence[str], values: Sequence[dict[str, Any]]) -> str:
    """The reason why the ranks cannot train together, or "".

    Args:
        hosts: of each rank.
        faults: of each rank, "" for none.
        values: of each rank, by name. They must be equal where ranks have them.
    """
    if faults[0] and len(set(faults)) == 1:
        return faults[0]  # what all ranks see needs no ranks in the message
    reasons = [f"{ranks}: {fault}" for fault, ranks in _ranks_by_text(faults, hosts).items() if fault]
    for name in dict.fromkeys(name for of_rank in values for name in of_rank):
        texts = _ranks_by_text([json.dumps(of_rank[name]) if name in of_rank else None for of_rank in values], hosts)
        if len(texts) > 1:
            reasons.append(f"{name} is " + ", ".join(f"{text} on {ranks}" for text, ranks in texts.items()))
    if not reasons:
        return ""
    return f"the ranks cannot train together: {'; '.join(reasons)}. Give all of them the same command, code and data"


def _ranks_by_text(texts: Sequence[str | None], hosts: Sequence[str]) -> dict[str, str]:
    """Each text, with its ranks and the host of the first one, in words."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, text in enumerate(texts):
        if text is not None:
            ranks[text].append(rank)
    return {
        text: f"{name_ranks(some)} ({hosts[some[0]]}{', ...' * (len({hosts[rank] for rank in some}) > 1)})"
        for text, some in ranks.items()
    }
