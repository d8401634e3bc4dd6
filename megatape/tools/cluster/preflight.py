"""Checks all ranks before a run: which ones start, what each finds, whether collectives work and how fast, and what to fix.

The ranks first meet at a key-value store and report through it, so that a missing host, or a network on which collectives
fail, leads to a table and a reason instead of a hang.
"""

import hashlib
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatape.config import Config, shared_values
from megatape.data.training.mixture import open_data
from megatape.distributed.exchange import exchange
from megatape.distributed.launchers import check_rendezvous, choose_interface, discover
from megatape.distributed.store import open_store
from megatape.distributed.topology import Topology, name_ranks
from megatape.errors import UserError
from megatape.reliability.shared_folder import check_shared
from megatape.utils.software import source_hash, versions
from megatape.utils.tables import columns
from megatape.utils.units import format_bytes
from megatape.utils.waiting import wait_until
from megatape.zero.distributed import initialize_distributed, shut_down


@dataclass(frozen=True)
class Rate:
    """One collective: whether every rank received the right values, and bytes per second that a rank moved."""

    name: str
    correct: bool
    bandwidth: float


def measure(device: torch.device, topology: Topology) -> list[Rate]:
    """Check and time the collectives that training uses. Collective over all ranks."""
    world = topology.world_size
    rank = topology.rank
    part = (2**24 if device.type == "cuda" else 2**19) // world  # float32 elements that each rank sends to each other rank
    steps = torch.arange(part, device=device, dtype=torch.float32) % 1000
    blocks = torch.cat([steps + destination for destination in range(world)])  # one block per destination
    ranks_sum = world * (world - 1) / 2
    whole = torch.empty_like(blocks)
    own = torch.empty_like(steps)
    moved = 4 * part * (world - 1)
    exchanged = torch.cat([(steps + rank) * world + source for source in range(world)])
    reduced = world * (steps + rank) + ranks_sum
    # Bytes that a rank moves, the collective, its output, and what it has to be.
    cases: dict[str, tuple[int, Callable[[], Any], Tensor, Tensor]] = {
        "all-reduce": (2 * moved, lambda: dist.all_reduce(whole.copy_(blocks).add_(rank)), whole, world * blocks + ranks_sum),
        "all-gather": (moved, lambda: dist.all_gather_into_tensor(whole, steps + rank), whole, blocks),
        "reduce-scatter": (moved, lambda: dist.reduce_scatter_tensor(own, blocks + rank), own, reduced),
        "all-to-all": (moved, lambda: dist.all_to_all_single(whole, blocks * world + rank), whole, exchanged),
    }
    rates = []
    for name, (amount, act, output, expected) in cases.items():
        act()  # also warms up
        correct = torch.equal(output, expected)
        rounds = 3
        _wait(device)
        started = time.perf_counter()
        for _ in range(rounds):
            act()
        _wait(device)
        seconds = torch.tensor([(time.perf_counter() - started) / rounds, float(not correct)], device=device)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        rates.append(Rate(name, not seconds[1], amount / float(seconds[0])))
    return rates


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


LOG = logging.getLogger(__name__)

MEETING_SECONDS = 25.0  # timeout for all ranks to arrive
SHARING_SECONDS = 5.0  # timeout for a new file to appear on other hosts
TALKING_SECONDS = 20.0  # timeout of an answer or a collective
MAX_CLOCK_OFFSET = 1.0  # seconds
MIN_FREE = 5 * 2**30  # bytes in the run's folder


@dataclass
class Report:
    """What one rank found. Versions, code and configuration must be equal on all ranks; `faults` are the rank's own errors."""

    rank: int
    host: str = ""
    versions: str = ""  # Python / torch / DeepSpeed
    code: str = ""
    config: str = ""
    device: str = ""
    interface: str = ""
    clock: float | None = None  # seconds ahead of rank 0, if they could exchange data
    free: int | None = None  # bytes in the run's folder, if they could exchange data and all ranks see it
    faults: list[str] = field(default_factory=list)

    @contextmanager
    def noting(self, *kinds: type[Exception], context: str = "") -> Iterator[None]:
        """Add an error of the block, if it is of these kinds, to the faults.

        Args:
            kinds: Types of errors; others are raised.
            context: What comes before the error's text.
        """
        try:
            yield
        except kinds as error:
            self.faults.append(f"{context}{error}")


def preflight(config: Config) -> int:
    """Check all ranks and print a table on rank 0. Returns the exit status: 0, or 2 if there is something to fix."""
    speaks = True
    try:
        topology = discover()
        speaks = topology.local_rank == 0
        config.accumulation(topology.world_size)
        store = _meet(topology)
    except UserError as error:
        if speaks:
            LOG.error("error: %s", error)
        return 2
    report = _look(config, topology)
    rates = _talk(Path(config.run.directory), report, topology, store)
    entries = _collect(store, "report", asdict(report), topology)
    reports = [
        Report(rank, faults=[entry]) if isinstance(entry, str) else Report(**entry) for rank, entry in enumerate(entries)
    ]
    faults = find_faults(reports)
    if topology.is_main:
        LOG.info(table(reports, rates, faults))
    _collect(store, "end", None, topology)  # rank 0 serves the store: it must be the last to leave
    return 2 if faults else 0


def find_faults(reports: list[Report]) -> list[str]:
    """Differences between ranks and errors of single ranks, each with a remedy."""
    found = []
    answered = [report for report in reports if report.host]
    for name, what, remedy in (
        ("versions", "versions of Python, torch or DeepSpeed", "install the same environment on all hosts (constraints.txt)"),
        ("code", "versions of megatape", "copy the same code to all hosts, or keep it in a shared folder"),
        ("config", "configurations", "give all ranks the same --config and --set"),
        ("device", "devices", "the slowest sets the pace; use GPUs of one type, with one rank on each"),
    ):
        kinds = dict.fromkeys(getattr(report, name) for report in answered)
        groups = {kind: [report for report in answered if getattr(report, name) == kind] for kind in kinds}
        if len(groups) > 1:
            shown = "; ".join(f"{kind} on {_ranks(group)}" for kind, group in groups.items())
            found.append(f"{what} differ: {shown}: {remedy}")
    if late := [(report.host, clock) for report in reports if abs(clock := report.clock or 0.0) > MAX_CLOCK_OFFSET]:
        clocks = ", ".join(f"{host} {clock:+.1f} s" for host, clock in late)
        found.append(f"clocks differ from rank 0's ({clocks}): file times and logs will be misleading; start NTP or chrony")
    free = min((report.free for report in reports if report.free is not None), default=MIN_FREE)
    if free < MIN_FREE:
        found.append(f"only {format_bytes(free)} free in run.directory: free space for checkpoints")
    faults = dict.fromkeys(fault for report in reports for fault in report.faults)
    return found + [f"{_ranks([report for report in reports if fault in report.faults])}: {fault}" for fault in faults]


def table(reports: list[Report], rates: list[Rate], faults: list[str]) -> str:
    """The report that rank 0 prints."""
    rows = [
        {
            "rank": str(report.rank),
            "host": report.host,
            "python/torch/deepspeed": report.versions,
            "code": report.code,
            "config": report.config,
            "device": report.device,
            "interface": report.interface,
            "clock": "not compared" if report.clock is None else f"{1000 * report.clock:+.0f} ms",
            "run.directory": _describe_folder(report),
        }
        for report in reports
    ]
    lines = [columns([list(row.values()) for row in rows], list(rows[0]))]
    if rates:
        found = [
            (
                rate.name,
                "correct" if rate.correct else "WRONG",
                f"{format_bytes(rate.bandwidth)}/s a rank" if rate.bandwidth else "one rank moves nothing",
            )
            for rate in rates
        ]
        lines.append(columns(found))
    lines += ["to fix:", *(f"  {fault}" for fault in faults)] if faults else ["all checks passed"]
    return "\n".join(lines)


def _meet(topology: Topology) -> dist.Store:
    """A store that all ranks have joined.

    Raises:
        UserError: Ranks are missing, or the address does not answer, and the message names them; also as `check_rendezvous`
            raises it.
    """
    check_rendezvous()
    try:
        store = open_store(topology, timedelta(seconds=MEETING_SECONDS), wait_for_ranks=False)
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        raise UserError(
            f"rank {topology.rank} on {socket.gethostname()}: rank 0 did not answer at {os.environ['MASTER_ADDR']} port "
            f"{os.environ['MASTER_PORT']} within "
            f"{MEETING_SECONDS:.0f} s: check that its host is up, that MASTER_ADDR is its address, and that the firewall "
            f"lets the port through ({str(error).splitlines()[0]})"
        ) from None
    store.set(f"host{topology.rank}", socket.gethostname())
    keys = [f"host{rank}" for rank in range(topology.world_size)]
    if not wait_until(lambda: store.check(keys), MEETING_SECONDS, interval=0.1):
        arrived = {rank: store.get(key).decode() for rank, key in enumerate(keys) if store.check([key])}
        there = ", ".join(sorted(set(arrived.values())))
        absent = [str(rank) for rank in range(topology.world_size) if rank not in arrived]
        raise UserError(
            f"rank {topology.rank} on {socket.gethostname()}: {len(absent)} of {topology.world_size} ranks did not arrive "
            f"within {MEETING_SECONDS:.0f} s: {', '.join(absent)}; ranks arrived from {there}. "
            "Check the launcher's messages about the other hosts: are they up and reachable, and does Python start there?"
        )
    return store


def _look(config: Config, topology: Topology) -> Report:
    """What this rank finds without the others."""
    values = hashlib.sha256(json.dumps(shared_values(config), sort_keys=True).encode()).hexdigest()
    report = Report(topology.rank, socket.gethostname(), versions(), source_hash()[:8], values[:8])
    if torch.cuda.is_available():
        number = topology.local_rank if torch.cuda.device_count() > 1 else 0
        with report.noting(AssertionError, RuntimeError, context=f"no GPU for local rank {topology.local_rank}: "):
            report.device = torch.cuda.get_device_name(number)
    else:
        report.device = "cpu"
    with report.noting(UserError):
        name, address = choose_interface(os.environ["MASTER_ADDR"])
        chosen = os.environ.get("NCCL_SOCKET_IFNAME" if torch.cuda.is_available() else "GLOO_SOCKET_IFNAME")
        report.interface = f"{chosen} (set)" if chosen else f"{name} {address}"
    with report.noting(UserError, OSError):
        open_data(config)
    return report


def _collect(store: dist.Store, name: str, value: Any, topology: Topology) -> list[Any]:
    """Gather a JSON value from every rank through the store, which works where collectives do not.

    The value of a rank that does not answer is a text that says so.
    """
    store.set(f"{name}{topology.rank}", json.dumps(value))
    found = []
    for rank in range(topology.world_size):
        try:
            store.wait([f"{name}{rank}"], timedelta(seconds=TALKING_SECONDS))
            found.append(json.loads(store.get(f"{name}{rank}")))
        except (dist.DistStoreError, dist.DistNetworkError):
            found.append(f"no answer within {TALKING_SECONDS:.0f} s")
    return found


def _talk(directory: Path, report: Report, topology: Topology, store: dist.Store) -> list[Rate]:
    """Try what ranks do together, and add it to the report. Returns the rates of the collectives that training uses."""
    rates = []
    try:
        device = initialize_distributed(topology, timedelta(seconds=TALKING_SECONDS), store=store)
        rates = measure(device, topology)
        if wrong := [rate.name for rate in rates if not rate.correct]:
            report.faults.append(f"wrong results from {', '.join(wrong)}: the network or the communication library is faulty")
        dist.barrier()
        now = time.time()
        report.clock = now - exchange(now, topology)[0]
        with report.noting(OSError):
            check_shared(directory, topology, SHARING_SECONDS)
            report.free = shutil.disk_usage(directory).free
            own = directory / f".preflight-{topology.rank}"
            own.touch()
            own.unlink()
    except (RuntimeError, ValueError) as error:
        report.faults.append(
            f"the ranks found each other but cannot exchange data: {str(error).splitlines()[0]}: set GLOO_SOCKET_IFNAME (CPU) "
            "or NCCL_SOCKET_IFNAME (GPU) to the interface of the network between the hosts, and open its ports"
        )
    finally:
        shut_down()
    return rates


def _describe_folder(report: Report) -> str:
    """What a rank found of the run's folder."""
    if report.clock is None:  # the ranks could not exchange data
        return "not checked"
    return "NOT SHARED" if report.free is None else f"shared, {format_bytes(report.free)} free"


def _ranks(reports: list[Report]) -> str:
    """For messages, such as "ranks 0-1, 4 (n1, n2)"."""
    hosts = ", ".join(sorted({report.host for report in reports}))
    return f"{name_ranks(report.rank for report in reports)} ({hosts})"
