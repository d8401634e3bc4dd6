"""Checks all ranks before a run: whether they start, have equal software and data, and can communicate fast enough.

All ranks first join a key-value store (rendezvous.py). Each rank then inspects its host, runs the collectives (bandwidth.py),
and sends its report (rank_report.py) through the store. So a missing host, or a network on which collectives fail, leads to a
table and a reason instead of a hang.
"""

import hashlib
import json
import logging
import os
import shutil
import socket
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from megatape.config import Config, shared_values
from megatape.data.training.run_data import open_data
from megatape.distributed.launch.launchers import set_up_ranks
from megatape.distributed.launch.network import choose_interface
from megatape.distributed.topology import Topology
from megatape.distributed.values.exchange import gather_values
from megatape.errors import ExitStatus, UserError
from megatape.reliability.shared_folder import check_shared
from megatape.software import source_hash, versions
from megatape.tools.cluster.preflight.bandwidth import Rate, measure
from megatape.tools.cluster.preflight.rank_report import RankReport, format_report, reasons_to_fix
from megatape.tools.cluster.preflight.rendezvous import Rendezvous
from megatape.tools.cluster.preflight.timeouts import DEFAULT_TIMEOUTS, Timeouts
from megatape.zero.setup.process_group import initialize_distributed, shut_down

LOG = logging.getLogger(__name__)

# Number of hash digits in the table.
HASH_DIGITS = 8


def preflight(config: Config, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> int:
    """Check all ranks, and print a table on rank 0.

    Args:
        config: Configuration of the run.
        timeouts: Timeouts of the checks.

    Returns:
        Exit status: 0, or 2 if something has to be fixed.
    """
    prints_errors = True
    try:
        topology = set_up_ranks()
        prints_errors = topology.local_rank == 0
        config.check_divides(topology.world_size)
        rendezvous = Rendezvous(topology, timeouts)
    except UserError as error:
        if prints_errors:
            LOG.error("error: %s", error)
        return ExitStatus.USER_ERROR

    report = inspect_host(config, topology)
    rates = _test_collectives(Path(config.run.directory), report, topology, rendezvous.store, timeouts)
    reports = _collect_reports(rendezvous, report, timeouts)
    reasons = reasons_to_fix(reports)
    if topology.is_main:
        LOG.info(format_report(reports, rates, reasons))
    rendezvous.leave()
    if reasons:
        return ExitStatus.USER_ERROR
    return ExitStatus.DONE


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
        with report.collecting(AssertionError, RuntimeError, context=f"no GPU for local rank {topology.local_rank}: "):
            report.device = _gpu_name(topology.local_rank)
    with report.collecting(UserError):
        report.interface = _describe_interface(interface_variable)
    with report.collecting(UserError, OSError):
        open_data(config.data, config.training, config.evaluation, config.model.vocab_size)
    return report


def _gpu_name(local_rank: int) -> str:
    """Return the name of the GPU that this rank trains on."""
    number = 0
    # A launcher may show each rank a single GPU.
    if torch.cuda.device_count() > 1:
        number = local_rank
    return torch.cuda.get_device_name(number)


def _describe_interface(variable: str) -> str:
    """Return the network interface in this environment variable, or the one that leads to rank 0.

    Raises:
        UserError: No interface leads to rank 0.
    """
    chosen_by_user = os.environ.get(variable)
    if chosen_by_user:
        return f"{chosen_by_user} (set)"
    name, address = choose_interface(os.environ["MASTER_ADDR"])
    return f"{name} {address}"


def _test_collectives(
    directory: Path, report: RankReport, topology: Topology, store: dist.Store, timeouts: Timeouts
) -> list[Rate]:
    """Run the checks that need all ranks, and add their results to the report.

    Args:
        directory: Run directory.
        report: Report of this rank.
        topology: All ranks.
        store: Store that all ranks have joined.
        timeouts: Timeouts of the checks.

    Returns:
        Speeds of the collectives that training uses, empty if they fail.
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
            _check_writable(directory, topology.rank)
    except UserError as error:
        # The error says what to correct, such as too few GPUs. The network is not at fault.
        report.faults.append(str(error))
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        report.faults.append(
            f"the ranks found each other but cannot exchange data: {reason}: set GLOO_SOCKET_IFNAME (CPU) or "
            "NCCL_SOCKET_IFNAME (GPU) to the interface of the network between the hosts, and open its ports"
        )
    finally:
        shut_down()
    return rates


def _check_writable(directory: Path, rank: int) -> None:
    """Create and remove a file. Raises OSError if the rank cannot write to the directory."""
    test_file = directory / f".preflight-{rank}"
    test_file.touch()
    test_file.unlink()


def _collect_reports(rendezvous: Rendezvous, report: RankReport, timeouts: Timeouts) -> list[RankReport]:
    """Return the reports of all ranks. The report of a rank that does not answer says so."""
    reports = []
    for rank, values in enumerate(rendezvous.collect("report", asdict(report))):
        if values is None:
            reports.append(RankReport(rank, faults=[f"no answer within {timeouts.answer:.0f} s"]))
        else:
            reports.append(RankReport(**values))
    return reports
