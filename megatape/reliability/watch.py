"""Ends all ranks of a run soon after one fails, dies, freezes or hangs, by an error that names it.

A collective that waits for a dead rank may hang forever (NCCL) or fail without naming it (gloo). So
a thread of each rank sends heartbeats to the store at which the ranks met, and rank 0 judges them
(diagnosis.py). When a rank hangs, every rank that still can writes the stacks of its threads.

The store is in rank 0's process. While that is frozen, a call to the store never returns, whatever
its timeout. So a second thread, which calls nothing that could block, ends the process when the
first one has sent no heartbeat for too long.
"""

import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from megatape.distributed.store import Messages
from megatape.distributed.topology import Topology
from megatape.errors import ExitStatus, UserError
from megatape.reliability.diagnosis import CollectiveFailure, Heartbeat, Peer, diagnose, find_stragglers, observe
from megatape.reliability.limits import WatchLimits
from megatape.reliability.pace import Pace, Phase
from megatape.utils.files import without_links
from megatape.utils.masking import mask
from megatape.utils.torch_internals import clone_default_store, count_collectives
from megatape.utils.units import format_time
from megatape.utils.waiting import wait_until

# Exit statuses allowed in a verdict. Others, such as 0, mean that the run is complete or will be resumed.
FAILURES = frozenset({ExitStatus.DIED, ExitStatus.USER_ERROR, ExitStatus.DIVERGED, ExitStatus.NOT_SAVED})
# group_desc of process groups whose collectives the background thread begins, at its own pace. They are counted separately.
BACKGROUND_GROUP = "background"


class RankFailed(RuntimeError):
    """Another rank failed, died, hung or was cut off; the message names it.

    Attributes:
        status: that the run ends with. One of a UserError's: that rank has shown its error.
    """

    def __init__(self, text: str, status: int = ExitStatus.DIED) -> None:
        super().__init__(text)
        self.status = status


class Watch:
    """Context manager around all work that communicates with other ranks.

    The process group must exist. An exception that leaves the block is reported to the other ranks.
    Threads end a rank that is stuck.

    Args:
        topology: The ranks.
        limits: Time limits, the same on all ranks.
        stacks: File to which this rank adds the stacks of its threads when a rank hangs.

    Attributes:
        pace: Present phase of this rank, for the work in the block to update.

    Raises:
        RankFailed: In place of a failed collective, with the name of the rank at fault.
    """

    def __init__(self, topology: Topology, limits: WatchLimits, stacks: Path | None = None) -> None:
        self.topology = topology
        self.limits = limits
        self.stacks = stacks
        self.process = f"host {socket.gethostname()}, process {os.getpid()}"
        self.pace = Pace(limits)
        watched = range(topology.world_size) if topology.is_main else [0]
        self.peers = [Peer(rank, Heartbeat(limits.stall)) for rank in watched]
        self.stragglers: set[int] = set()  # ranks that were reported
        self.num_heartbeats = 0
        self.seconds_since_failure = 0.0  # of a collective
        self.verdict: str | None = None
        self.status: int = ExitStatus.DIED  # of the verdict
        self.finished = threading.Event()
        self.decided = threading.Event()

    def __enter__(self) -> Self:
        if self.topology.world_size > 1:
            self.messages = Messages(clone_default_store(), "watch/")  # the default connection may be blocked
            self._send_heartbeat()
            targets = self._run, self._guard_store
            self.threads = [threading.Thread(target=target, name="watch", daemon=True) for target in targets]
            for thread in self.threads:
                thread.start()
        return self

    def authenticate(self, secret: bytes) -> None:
        """Accept only messages of ranks that know this secret, from now on.

        Args:
            secret: Secret that all ranks share.
        """
        if self.topology.world_size > 1:
            self.messages.authenticate(secret)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.topology.world_size == 1:
            return
        try:
            if isinstance(error, Exception):  # not a KeyboardInterrupt, which all ranks receive
                self._report(error)
        finally:
            if error is None:
                self._leave(self.limits.stall)
            elif isinstance(error, Exception):
                self._leave(2 * self.limits.period)
            self.finished.set()
            self.pace.limit_shortened.set()  # wakes the thread that waits for it
            for thread in self.threads:
                thread.join(self.limits.grace)

    def _report(self, error: Exception) -> None:
        """Report this rank's error to the others, or raise RankFailed if another rank caused it."""
        # A launcher that sees a rank end sends SIGTERM to the others. They report first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        line = mask(f"{type(error).__name__}: " + str(error).strip().split("\n")[0])
        if _is_collective_error(error):
            self._publish("failure", self.topology.rank, line)
        else:
            user_error = error if isinstance(error, UserError) else None
            status = user_error.status if user_error else ExitStatus.DIED
            is_first = self._publish("verdict", f"rank {self.topology.rank} failed: {line}", False, status)
            if is_first or (user_error and user_error.everywhere):
                return
        self.decided.wait(self.limits.silence + 2 * self.limits.period)
        if self.verdict:
            raise RankFailed(self.verdict, self.status) from error

    def _leave(self, timeout: float) -> None:
        """Leave the store. Rank 0, which holds it, waits up to `timeout` seconds for the others."""
        with suppress(RuntimeError):  # the store has ended
            if not self.topology.is_main:
                self.messages.put(f"left/{self.topology.rank}")
                return
            others = [peer.rank for peer in self.peers if peer.rank]
            wait_until(lambda: all(self._has_left(rank) for rank in others), timeout, interval=0.02)

    def _has_left(self, rank: int) -> bool:
        """Whether a rank has ended its work without an error."""
        return self.messages.get(f"left/{rank}") is not None

    def _publish(self, name: str, *values: Any) -> bool:
        """Set a value for all ranks unless another rank did before or the store has ended.

        Returns:
            Whether no other rank did.
        """
        with suppress(RuntimeError):
            return self.messages.put_first(name, *values)
        return True

    def _send_heartbeat(self) -> None:
        self.num_heartbeats += 1
        phase = self.pace.phase
        background = self.pace.background or Phase("", 0.0)
        num_collectives, num_background = count_collectives(BACKGROUND_GROUP)
        heartbeat = Heartbeat(
            limit=phase.limit,
            phase=phase.name,
            num_collectives=num_collectives,
            busy_share=self.pace.busy_share,
            process=self.process,
            number=self.num_heartbeats,
            background_limit=background.limit,
            background=background.name,
            num_background=num_background,
        )
        self.messages.put(f"heartbeat/{self.topology.rank}", *heartbeat)

    def _run(self) -> None:
        """Thread that uses the store: every period, and when the timeout becomes shorter."""
        looked = time.monotonic()
        while not self.verdict:
            self.pace.limit_shortened.wait(looked + self.limits.period - time.monotonic())
            self.pace.limit_shortened.clear()
            if self.finished.is_set():
                return
            try:
                self._send_heartbeat()
                if time.monotonic() >= looked + self.limits.period:
                    self.verdict = self._look()
                    looked = time.monotonic()
            except RuntimeError:
                self.verdict = "rank 0 has ended, and with it the store at which the ranks met; see its last output"
            except (TypeError, ValueError):
                self.verdict = "a process that is not a rank of this run writes to the store at which the ranks met"
        self.decided.set()
        if not self.finished.wait(self.limits.grace):
            self._end(self.verdict)

    def _guard_store(self) -> None:
        """Thread without input and output, which notices that the other one is stuck."""
        count = self.num_heartbeats
        stuck = 0.0
        while not self.finished.wait(self.limits.period) and not self.decided.is_set():
            count, stuck = self.num_heartbeats, stuck + self.limits.period if count == self.num_heartbeats else 0.0
            if stuck > min(self.limits.silence, self.pace.phase.limit):
                text = (
                    f"rank 0 is frozen or cut off: its store has not answered for {stuck:.0f} s; the run ends here, end rank "
                    "0's process and continue with --resume auto"
                )
                self._show_stacks(text)
                self._end(text)

    def _look(self) -> str | None:
        """Read the store once a period. Returns the verdict of the first rank that has one."""
        heartbeats = {peer.rank: self.messages.get(f"heartbeat/{peer.rank}") for peer in self.peers}
        observe(self.peers, {rank: Heartbeat(*values) for rank, values in heartbeats.items() if values}, self.limits.period)
        for peer in self.peers:
            peer.has_left = peer.silent > 0 and self._has_left(peer.rank)
        for rank, warning in find_stragglers(self.peers).items():
            if rank not in self.stragglers:
                self.stragglers.add(rank)
                self.pace.warnings.append(warning)
        failure = None
        if values := self.messages.get("failure"):
            self.seconds_since_failure += self.limits.period
            failure = CollectiveFailure(values[0], values[1], self.seconds_since_failure)
        if cause := diagnose(self.peers, self.limits, failure):
            self._publish("verdict", cause, True, ExitStatus.DIED)
        values = self.messages.get("verdict")
        if not values:
            return None
        cause, is_diagnosis, status = values
        if status in FAILURES:
            self.status = status
        verdict = f"{cause}; the run ends here, continue it with --resume auto"
        if is_diagnosis:
            self._show_stacks(verdict)  # before the main thread may leave the place where it is
        return verdict

    def _show_stacks(self, text: str) -> None:
        """Add the reason of the end and the stacks of all threads to this rank's file."""
        if self.stacks:
            writer = threading.Thread(target=self._write_stacks, args=[self.stacks, text], daemon=True)
            writer.start()
            writer.join(self.limits.grace)  # the file system may be what hangs

    def _write_stacks(self, path: Path, text: str) -> None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a", encoding="utf-8", opener=without_links) as file:
                place = f"rank {self.topology.rank}, {self.process}, in {self.pace.phase.name}"
                file.write(f"{format_time(time.time())}, {place}: {text}\n")
                file.flush()
                faulthandler.dump_traceback(file)

    def _end(self, text: str) -> None:
        """Print the error and end the process, even if its main thread or its terminal is stuck."""
        lines = f"error on rank {self.topology.rank}: {text}\n"
        if text.startswith(f"rank {self.topology.rank} ("):
            lines += "it is here:\n" + self._stuck_frames(text)
        _, writable, _ = select.select([], [2], [], 1.0)
        with suppress(OSError):
            if writable and self.status == ExitStatus.DIED:
                os.write(2, lines.encode())
        os._exit(self.status)

    def _stuck_frames(self, text: str) -> str:
        """Return the stack of the main thread, or if the background thread hangs, of all threads except the watch's."""
        background = self.pace.background
        threads = [threading.main_thread()]
        if background is not None and f"hangs in {background.name}" in text:
            threads = [thread for thread in threading.enumerate() if thread.name != "watch"]
        frames = sys._current_frames()
        stacks = [frames[thread.ident] for thread in threads if thread.ident in frames]
        return "\n".join("".join(traceback.format_stack(frame)) for frame in stacks)


def _is_collective_error(error: Exception) -> bool:
    """Whether a collective raised this, since another rank is gone; gloo has no exception type."""
    text = str(error)
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError)
        and any(word in text for word in ("gloo", "Connection closed", "Connection reset", "NCCL"))
    )
