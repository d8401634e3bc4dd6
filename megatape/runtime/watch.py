"""Ends all ranks of a run soon after one of them fails, dies or is cut off, with an error that names it.

A collective that waits for a dead rank may hang forever (NCCL) or fail without naming it (gloo). So
a thread of each rank sends heartbeats to the store at which the ranks met, and rank 0 watches them.
"""

import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from megatape.runtime.topology import Topology

STATUS = 1  # exit status of a rank that the watch ended


@dataclass(frozen=True)
class Limits:
    """In seconds, the same on all ranks.

    period: between heartbeats. silence: without one until a rank counts as dead. suspicion: the same, once a collective has
    failed on any rank. grace: for a rank to end by itself once the cause is known."""

    period: float = 2.0
    silence: float = 30.0
    suspicion: float = 8.0
    grace: float = 10.0


class RankFailed(RuntimeError):
    """Another rank failed, died or was cut off; the message names it."""


class Watch:
    """Context manager around all work that communicates with other ranks; the process group must exist.

    An exception that leaves the block is reported to the other ranks. If it is a failed collective, RankFailed,
    which names the rank at fault, is raised instead. The thread ends a rank that is stuck in a collective."""

    def __init__(self, topology: Topology, limits: Limits = Limits()) -> None:
        self.topology, self.limits = topology, limits
        self.watched = list(range(topology.world_size)) if topology.is_main else [0]
        self.verdict: str | None = None
        self.over, self.decided = threading.Event(), threading.Event()

    def __enter__(self) -> Self:
        if self.topology.world_size > 1:
            # Its own connection: the default one may be blocked.
            self.store = _get_default_store().clone()  # type: ignore[attr-defined]
            self.store.set(f"watch/process/{self.topology.rank}", f"host {socket.gethostname()}, process {os.getpid()}")
            self.thread = threading.Thread(target=self._run, name="watch", daemon=True)
            self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.topology.world_size == 1:
            return
        try:
            if isinstance(error, Exception):  # not a KeyboardInterrupt, which all ranks receive
                self._explain(error)
        finally:
            self.over.set()
            self.thread.join(self.limits.grace)

    def _explain(self, error: Exception) -> None:
        """Tell the other ranks what failed here, or learn from them what failed elsewhere."""
        # A launcher that sees a rank end sends SIGTERM to the others. They are ending anyway, but first say why.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        failed_exchange = _exchange_failed(error)
        if failed_exchange:
            self._tell("watch/suspicion", "yes")
            self.decided.wait(self.limits.silence + 2 * self.limits.period)
        else:
            line = str(error).strip().split("\n")[0]
            self._tell("watch/verdict", f"rank {self.topology.rank} failed: {type(error).__name__}: {line}")
        if self.topology.is_main:
            time.sleep(2 * self.limits.period)  # the store ends with this process: let the others read it first
        if failed_exchange and self.verdict:
            raise RankFailed(self.verdict) from error

    def _tell(self, key: str, text: str) -> None:
        """Set `key` for all ranks unless another rank did before; without a store there is nobody left to tell."""
        try:
            self.store.compare_set(key, "", text)
        except RuntimeError:
            return

    def _run(self) -> None:
        beats = dict.fromkeys(self.watched, "")
        changed = dict.fromkeys(self.watched, time.monotonic())
        count = 0
        while not self.over.wait(self.limits.period):
            count += 1
            try:
                self.store.set(f"watch/beat/{self.topology.rank}", str(count))
                self._look(beats, changed)
            except RuntimeError:
                self.verdict = "rank 0 has ended, and with it the store at which the ranks met; see its last output"
            if self.verdict:
                self.decided.set()
                break
        if self.verdict and not self.over.wait(self.limits.grace):
            print(f"error on rank {self.topology.rank}: {self.verdict}", file=sys.stderr, flush=True)
            os._exit(STATUS)

    def _look(self, beats: dict[int, str], changed: dict[int, float]) -> None:
        """Compare the heartbeats with the last ones seen; reach a verdict, or learn that of another rank."""
        now = time.monotonic()
        for rank in self.watched:
            key = f"watch/beat/{rank}"
            beat = self.store.get(key).decode() if self.store.check([key]) else ""
            if beat != beats[rank]:
                beats[rank], changed[rank] = beat, now
        limit = self.limits.suspicion if self.store.check(["watch/suspicion"]) else self.limits.silence
        for rank, moment in changed.items():
            if now - moment > limit:
                self._tell(
                    "watch/verdict", f"rank {rank} ({self._process(rank)}) died or was cut off: no heartbeat for {limit:.0f} s"
                )
        if self.store.check(["watch/verdict"]):
            self.verdict = self.store.get("watch/verdict").decode() + "; the run ends here, continue it with --resume auto"

    def _process(self, rank: int) -> str:
        key = f"watch/process/{rank}"
        return self.store.get(key).decode() if self.store.check([key]) else "which never started"


def _exchange_failed(error: Exception) -> bool:
    """Whether a collective raised this because another rank is gone; torch has no exception type for gloo."""
    text = str(error)
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError)
        and any(word in text for word in ("gloo", "Connection closed", "Connection reset", "NCCL"))
    )
