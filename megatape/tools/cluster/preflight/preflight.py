"""Checks all ranks before a run: which ranks start, what each of them finds, and whether and how fast collectives work.

The ranks first meet at a key-value store and report through it. A missing host, or a network on which collectives fail, so
leads to a table and a reason instead of a hang.
"""

import hashlib
import json
import logging
import os
import shutil
import socket
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from megatape.config import Config, shared_values
from megatape.data.training.run_data import open_data
from megatape.distributed.exchange import gather_values
from megatape.distributed.launchers import discover
from megatape.distributed.network import NAME_TIMEOUT, check_rendezvous, choose_interface
from megatape.distributed.store import open_store
from megatape.distributed.topology import Topology
from megatape.errors import ExitStatus, UserError
from megatape.reliability.shared_folder import check_shared
from megatape.tools.cluster.preflight.bandwidth import Rate, measure
from megatape.tools.cluster.preflight.rank_report import RankReport, find_problems, format_report
from megatape.utils.software import source_hash, versions
from megatape.utils.waiting import wait_until
from megatape.zero.distributed import initialize_distributed, shut_down

LOG = logging.getLogger(__name__)

HASH_DIGITS = 8  # shown of hashes


@dataclass(frozen=True)
class Timeouts:
    """Timeouts in seconds.

    Attributes:
        name: Time in which the name of the main host may still become known.
        arrival: Time for all ranks to arrive at the store.
        file: Time for a new file to appear on other hosts.
        answer: Time for an answer of another rank, or for a collective.
    """

    name: float = NAME_TIMEOUT
    arrival: float = 25.0
    file: float = 5.0
    answer: float = 20.0


DEFAULT_TIMEOUTS = Timeouts()


def preflight(config: Config, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> int:
    """Check all ranks and print a table on rank 0.

    Args:
        config: Configuration of the run.
        timeouts: Timeouts of the checks.

    Returns:
        The exit status: 0, or 2 if there is something to fix.
    """
    prints_errors = True
    try:
        topology = discover()
        prints_errors = topology.local_rank == 0
        config.accumulation(topology.world_size)
        store = _join_store(topology, timeouts)
    except UserError as error:
        if prints_errors:
            LOG.error("error: %s", error)
        return ExitStatus.USER_ERROR

    report = inspect_host(config, topology)
    rates = _test_collectives(Path(config.run.directory), report, topology, store, timeouts)
    reports = _collect_reports(store, report, topology, timeouts)
    problems = find_problems(reports)
    if topology.is_main:
        LOG.info(format_report(reports, rates, problems))
    # Rank 0 serves the store, so it must be the last one to leave.
    _collect(store, "end", None, topology, timeouts)
    if problems:
        return ExitStatus.USER_ERROR
    return ExitStatus.DONE


def _join_store(topology: Topology, timeouts: Timeouts) -> dist.Store:
    """Return a store that all ranks have joined.

    Raises:
        UserError: The address of rank 0 is invalid or does not answer, or ranks are missing. The message names them.
    """
    check_rendezvous(timeouts.name)
    host = socket.gethostname()
    try:
        store = open_store(topology, timedelta(seconds=timeouts.arrival), wait_for_ranks=False)
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"rank {topology.rank} on {host}: rank 0 did not answer at {os.environ['MASTER_ADDR']} port "
            f"{os.environ['MASTER_PORT']} within {timeouts.arrival:.0f} s: check that its host is up, that MASTER_ADDR is its "
            f"address, and that the firewall lets the port through ({reason})"
        ) from None
    store.set(f"host{topology.rank}", host)
    keys = [f"host{rank}" for rank in range(topology.world_size)]
    if wait_until(lambda: store.check(keys), timeouts.arrival, interval=0.1):
        return store

    hosts = set()
    absent = []
    for rank, key in enumerate(keys):
        if store.check([key]):
            hosts.add(store.get(key).decode())
        else:
            absent.append(str(rank))
    raise UserError(
        f"rank {topology.rank} on {host}: {len(absent)} of {topology.world_size} ranks did not arrive within "
        f"{timeouts.arrival:.0f} s: {', '.join(absent)}; ranks arrived from {', '.join(sorted(hosts))}. "
        "Check the launcher's messages about the other hosts: are they up and reachable, and does Python start there?"
    )


def inspect_host(config: Config, topology: Topology) -> RankReport:
    """Run the checks that need no other rank."""
    values = json.dumps(shared_values(config), sort_keys=True)
    report = RankReport(
        rank=topology.rank,
        host=socket.gethostname(),
        versions=versions(),
        code=source_hash()[:HASH_DIGITS],
        config=hashlib.sha256(values.encode()).hexdigest()[:HASH_DIGITS],
        device="cpu",
    )
    interface_variable = "GLOO_SOCKET_IFNAME"
    if torch.cuda.is_available():
        interface_variable = "NCCL_SOCKET_IFNAME"
        report.device = ""
        number = topology.local_rank if torch.cuda.device_count() > 1 else 0
        with report.collecting(AssertionError, RuntimeError, context=f"no GPU for local rank {topology.local_rank}: "):
            report.device = torch.cuda.get_device_name(number)
    with report.collecting(UserError):
        name, address = choose_interface(os.environ["MASTER_ADDR"])
        report.interface = f"{name} {address}"
        given = os.environ.get(interface_variable)
        if given:
            report.interface = f"{given} (set)"
    with report.collecting(UserError, OSError):
        open_data(config)
    return report


def _test_collectives(
    directory: Path, report: RankReport, topology: Topology, store: dist.Store, timeouts: Timeouts
) -> list[Rate]:
    """Run the checks that need all ranks, and add their results to the report.

    Args:
        directory: Folder of the run.
        report: Report of this rank.
        topology: All ranks.
        store: Store that all ranks have joined.
        timeouts: Timeouts of the checks.

    Returns:
        The speed of the collectives that training uses, empty if they fail.
    """
    rates: list[Rate] = []
    try:
        device = initialize_distributed(topology, timedelta(seconds=timeouts.answer), store=store)
        rates = measure(device, topology)
        wrong = [rate.name for rate in rates if not rate.correct]
        if wrong:
            report.faults.append(f"wrong results from {', '.join(wrong)}: the network or the communication library is faulty")

        dist.barrier()
        now = time.time()
        main_now = gather_values(now, topology)[0]
        report.clock = now - main_now

        with report.collecting(OSError):
            check_shared(directory, topology, timeouts.file)
            report.free = shutil.disk_usage(directory).free
            own_file = directory / f".preflight-{topology.rank}"
            own_file.touch()
            own_file.unlink()
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        report.faults.append(
            f"the ranks found each other but cannot exchange data: {reason}: set GLOO_SOCKET_IFNAME (CPU) or "
            "NCCL_SOCKET_IFNAME (GPU) to the interface of the network between the hosts, and open its ports"
        )
    finally:
        shut_down()
    return rates


def _collect_reports(store: dist.Store, report: RankReport, topology: Topology, timeouts: Timeouts) -> list[RankReport]:
    """Return the reports of all ranks. A rank that does not answer has a report that says so."""
    reports = []
    for rank, entry in enumerate(_collect(store, "report", asdict(report), topology, timeouts)):
        if isinstance(entry, str):
            reports.append(RankReport(rank, faults=[entry]))
        else:
            reports.append(RankReport(**entry))
    return reports


def _collect(store: dist.Store, name: str, value: Any, topology: Topology, timeouts: Timeouts) -> list[Any]:
    """Gather a JSON value from every rank through the store, which works where collectives do not.

    Args:
        store: Store that all ranks have joined.
        name: Name of the value, the same on all ranks.
        value: Value of this rank.
        topology: All ranks.
        timeouts: Timeouts of the checks.

    Returns:
        The values by rank. The value of a rank that does not answer is a text that says so.
    """
    store.set(f"{name}{topology.rank}", json.dumps(value))
    values = []
    for rank in range(topology.world_size):
        try:
            store.wait([f"{name}{rank}"], timedelta(seconds=timeouts.answer))
            values.append(json.loads(store.get(f"{name}{rank}")))
        except (dist.DistStoreError, dist.DistNetworkError):
            values.append(f"no answer within {timeouts.answer:.0f} s")
    return values
