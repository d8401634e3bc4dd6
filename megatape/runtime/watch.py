"""Ends every rank of a run, with an error that names the culprit, soon after one of them has failed, died or been cut off.

A collective that waits for a dead rank may wait for ever (NCCL) or fail without saying for whom (gloo). So each rank shows a sign
of life to the store at which the ranks met, from a thread of its own, and rank 0 watches the signs.
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

STATUS = 1  # exit status of a rank that did not end by itself


@dataclass(frozen=True)
class Limits:
    """Seconds. All ranks need the same.

    period: between signs of life. silence: without one until a rank counts as dead. suspicion: the same once a collective has failed
    somewhere. grace: that a rank has to end by itself when it is known why."""

    period: float = 2.0
    silence: float = 30.0
    suspicion: float = 8.0
    grace: float = 10.0


class RankFailed(RuntimeError):
    """Another rank has failed, died or been cut off; the message says which."""


class Watch:
    """Context manager around all work that exchanges something with other ranks, once the process group is there.

    An exception that leaves the block is told to the other ranks, unless it is itself a failed exchange: then RankFailed, which
    names the rank at fault, is raised in its place. A rank that is stuck in an exchange is ended from the thread."""

    def __init__(self, topology: Topology, limits: Limits = Limits()) -> None:
        self.topology, self.limits = topology, limits
        self.watched = list(range(topology.world_size)) if topology.is_main else [0]
        self.verdict: str | None = None
        self.over, self.decided = threading.Event(), threading.Event()

    def __enter__(self) -> Self:
        if self.topology.world_size > 1:
            self.store = _get_default_store().clone()  # type: ignore[attr-defined]  # a connection of its own: the other one may be waiting
            self.store.set(f"watch/place/{self.topology.rank}", f"host {socket.gethostname()}, process {os.getpid()}")
            self.thread = threading.Thread(target=self._run, name="watch", daemon=True)
            self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.topology.world_size == 1:
            return
        try:
            if isinstance(error, Exception):  # not a KeyboardInterrupt, which all ranks get
                self._explain(error)
        finally:
            self.over.set()
            self.thread.join(self.limits.grace)

    def _explain(self, error: Exception) -> None:
        """Tell the other ranks what happened here, or learn from them what happened there."""
        # A launcher that saw a rank end sends SIGTERM to the others: those end anyway, but say why first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        failed_exchange = _exchange_failed(error)
        if failed_exchange:
            self._tell("watch/suspicion", "yes")
            self.decided.wait(self.limits.silence + 2 * self.limits.period)
        else:
            line = str(error).strip().split("\n")[0]
            self._tell("watch/verdict", f"rank {self.topology.rank} failed: {type(error).__name__}: {line}")
        if self.topology.is_main:
            time.sleep(2 * self.limits.period)  # with this process the store ends: first the others must have read it
        if failed_exchange and self.verdict:
            raise RankFailed(self.verdict) from error

    def _tell(self, key: str, text: str) -> None:
        """Say it to all ranks if none has spoken before; where there is no store any more, there is nobody to tell."""
        try:
            self.store.compare_set(key, "", text)
        except RuntimeError:
            return

    def _run(self) -> None:
        signs = dict.fromkeys(self.watched, "")
        changed = dict.fromkeys(self.watched, time.monotonic())
        count = 0
        while not self.over.wait(self.limits.period):
            count += 1
            try:
                self.store.set(f"watch/sign/{self.topology.rank}", str(count))
                self._look(signs, changed)
            except RuntimeError:
                self.verdict = "rank 0 has ended, and with it the store at which the ranks met; see what it said last"
            if self.verdict:
                self.decided.set()
                break
        if self.verdict and not self.over.wait(self.limits.grace):
            print(f"error on rank {self.topology.rank}: {self.verdict}", file=sys.stderr, flush=True)
            os._exit(STATUS)

    def _look(self, signs: dict[int, str], changed: dict[int, float]) -> None:
        """Compare the signs with those seen last; decide, or learn what another rank has decided."""
        now = time.monotonic()
        for rank in self.watched:
            key = f"watch/sign/{rank}"
            sign = self.store.get(key).decode() if self.store.check([key]) else ""
            if sign != signs[rank]:
                signs[rank], changed[rank] = sign, now
        limit = self.limits.suspicion if self.store.check(["watch/suspicion"]) else self.limits.silence
        for rank, moment in changed.items():
            if now - moment > limit:
                self._tell(
                    "watch/verdict", f"rank {rank} ({self._place(rank)}) died or was cut off: no sign of it for {limit:.0f} s"
                )
        if self.store.check(["watch/verdict"]):
            self.verdict = self.store.get("watch/verdict").decode() + "; the run ends here, --resume auto goes on"

    def _place(self, rank: int) -> str:
        key = f"watch/place/{rank}"
        return self.store.get(key).decode() if self.store.check([key]) else "which never began"


def _exchange_failed(error: Exception) -> bool:
    """Whether this is what a collective raises when another rank is gone: torch has no type of its own for gloo's."""
    text = str(error)
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError)
        and any(word in text for word in ("gloo", "Connection closed", "Connection reset", "NCCL"))
    )
