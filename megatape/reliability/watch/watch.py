"""Ends all ranks of a run soon after one fails, dies, freezes or hangs, with an error naming it.

A collective waiting for a dead rank may hang forever (NCCL) or fail without naming it (gloo). So a thread of each rank sends
heartbeats to the ranks' store, and rank 0 judges them (peer_monitor.py, diagnosis.py). The first rank that finds a fault
publishes a verdict (verdict.py), and the threads of all ranks act on it. When a rank hangs, every rank that still can writes
its stacks (process_end.py).

The store is in rank 0's process. While that is frozen, calls to the store never return, whatever their timeout. So a second
thread, which calls nothing that could block, ends the process if the first one is stuck in sending a heartbeat
(store_guard.py).
"""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import torch.distributed as dist

from megatape.distributed.topology import Topology
from megatape.distributed.values.messages import StoreEnded
from megatape.errors import UserError
from megatape.reliability.watch.heartbeat_sender import HeartbeatSender
from megatape.reliability.watch.messages import ForeignMessage, WatchMessages
from megatape.reliability.watch.pace import Pace
from megatape.reliability.watch.peer_monitor import PeerMonitor
from megatape.reliability.watch.process_end import THREAD_NAME, ProcessEnd
from megatape.reliability.watch.rank_errors import RankFailed, is_collective_error
from megatape.reliability.watch.store_guard import StoreGuard
from megatape.reliability.watch.timeouts import WatchTimeouts
from megatape.reliability.watch.verdict import FaultKind, Verdict, describe_error
from megatape.utils.processes.waiting import wait_until
from megatape.utils.pytorch.torch_internals import clone_default_store

LOG = logging.getLogger(__name__)


def watch_ranks(topology: Topology, timeouts: WatchTimeouts, stacks: Path) -> "Watch | NoWatch":
    """Return the watch for a run. With a single rank, it watches nothing.

    Args:
        topology: All ranks.
        timeouts: Watch timeouts, the same on all ranks.
        stacks: File to append this rank's stacks to when a rank hangs.
    """
    if topology.world_size == 1:
        return NoWatch(timeouts)
    return Watch(topology, timeouts, stacks)


class NoWatch:
    """Watch for a run with a single rank. It sends nothing and starts no threads.

    Args:
        timeouts: Watch timeouts.

    Attributes:
        pace: This rank's pace.
    """

    def __init__(self, timeouts: WatchTimeouts) -> None:
        self.pace = Pace(timeouts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def authenticate(self, secret: bytes) -> None:
        """Do nothing: there are no messages."""


class Watch:
    """Watch for a run with several ranks: a context manager around all work that communicates with the others.

    The process group must exist. An exception leaving the block is reported to the other ranks. Threads end a stuck rank.

    Args:
        topology: All ranks.
        timeouts: Watch timeouts, the same on all ranks.
        stacks: File to append this rank's stacks to when a rank hangs.
        open_store: Opens a connection to the ranks' store. The default connection may be blocked by the main thread.

    Attributes:
        pace: This rank's pace. The work in the block enters its phases there.

    Raises:
        RankFailed: Instead of a failed collective's error, naming the rank at fault.
    """

    def __init__(
        self,
        topology: Topology,
        timeouts: WatchTimeouts,
        stacks: Path | None = None,
        open_store: Callable[[], dist.Store] = clone_default_store,
    ) -> None:
        self.pace = Pace(timeouts)
        self._topology = topology
        self._timeouts = timeouts
        self._messages = WatchMessages(open_store(), topology.rank)
        self._monitor = PeerMonitor(topology, timeouts, self._messages, self.pace.warnings.append)
        process = f"host {socket.gethostname()}, process {os.getpid()}"
        self._sender = HeartbeatSender(self._messages, self.pace, process)
        self._process_end = ProcessEnd(topology.rank, process, self.pace, stacks, timeouts.grace)
        self._verdict: Verdict | None = None
        self._finished = threading.Event()
        self._decided = threading.Event()
        guard = StoreGuard(self._sender, self.pace, timeouts, self._process_end)
        events = (self._finished, self._decided)
        self._threads = [
            threading.Thread(target=self._exchange_messages, name=THREAD_NAME, daemon=True),
            threading.Thread(target=guard.run, args=events, name=THREAD_NAME, daemon=True),
        ]

    def __enter__(self) -> Self:
        self._sender.send()
        for thread in self._threads:
            thread.start()
        return self

    def authenticate(self, secret: bytes) -> None:
        """Accept only messages of ranks that know this secret, from now on."""
        self._messages.authenticate(secret)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            # All ranks receive a KeyboardInterrupt, so it needs no report.
            if isinstance(error, Exception):
                self._report(error)
        finally:
            if error is None:
                self._leave(self._timeouts.stall)
            elif isinstance(error, Exception):
                self._leave(2 * self._timeouts.period)
            self._finished.set()
            # Wake the thread that waits for this event.
            self.pace.timeout_shortened.set()
            for thread in self._threads:
                thread.join(self._timeouts.grace)

    def _report(self, error: Exception) -> None:
        """Report this rank's error to the others, or raise RankFailed if another rank caused it."""
        # When a rank ends, its launcher sends SIGTERM to the others. Let them report first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if is_collective_error(error):
            self._messages.report_failed_collective(describe_error(error))
        else:
            is_first = self._messages.publish_verdict(Verdict.of_error(self._topology.rank, error))
            is_everywhere = isinstance(error, UserError) and error.everywhere
            if is_first or is_everywhere:
                return
        self._decided.wait(self._timeouts.silence + 2 * self._timeouts.period)
        if self._verdict is not None:
            raise RankFailed(self._verdict.message, self._verdict.status) from error

    def _leave(self, timeout: float) -> None:
        """Leave the store. Rank 0, whose process has it, waits up to `timeout` seconds for the others."""
        with suppress(StoreEnded):
            if not self._topology.is_main:
                self._messages.leave()
                return
            others = range(1, self._topology.world_size)
            wait_until(lambda: all(self._messages.has_left(rank) for rank in others), timeout, interval=0.02)

    def _exchange_messages(self) -> None:
        """Send heartbeats and check the peers every period, in a thread. Also send when the timeout becomes shorter."""
        checked = time.monotonic()
        while self._verdict is None:
            self.pace.timeout_shortened.wait(checked + self._timeouts.period - time.monotonic())
            self.pace.timeout_shortened.clear()
            if self._finished.is_set():
                return
            try:
                self._sender.send()
                if time.monotonic() >= checked + self._timeouts.period:
                    self._check_peers()
                    checked = time.monotonic()
            except StoreEnded:
                cause = "rank 0 has ended, and with it the store at which the ranks met; see its last output"
                self._verdict = Verdict(FaultKind.STORE, cause)
            except ForeignMessage:
                cause = "a process that is not a rank of this run writes to the store at which the ranks met"
                self._verdict = Verdict(FaultKind.STORE, cause)
            except Exception as error:
                LOG.exception("the watch of rank %d failed:", self._topology.rank)
                self._verdict = Verdict.of_error(self._topology.rank, error)
                self._messages.publish_verdict(self._verdict)
        self._decided.set()
        if not self._finished.wait(self._timeouts.grace):
            self._process_end.end(self._verdict)

    def _check_peers(self) -> None:
        """Read the other ranks' messages, and accept a verdict."""
        verdict = self._monitor.check()
        if verdict is None:
            return
        if verdict.is_diagnosis:
            # Before the main thread learns of the verdict, because it may then move on.
            self._process_end.append_stacks(verdict)
        self._verdict = verdict
