"""Ends all ranks of a run soon after one of them fails, dies, freezes or hangs, with an error that names it.

A collective that waits for a dead rank may hang forever (NCCL) or fail without naming it (gloo). So
a thread of each rank sends heartbeats to the store at which the ranks met, and rank 0 watches them.
A heartbeat carries how many collectives the rank has begun, what it does, and for how long others may
wait for it meanwhile (pace.py): a rank that hangs while others wait for it has begun the fewest.
When one hangs, every rank that still can writes where its threads are.

The store is in rank 0's process. While that is frozen, a call to the store never returns, whatever
its timeout. So a second thread, which calls nothing that could block, ends the process when the first
one has made no round for too long.
"""

import faulthandler
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store, _world

from megatape.errors import ExitStatus, UserError
from megatape.runtime.pace import Pace, slow_ranks
from megatape.runtime.topology import Topology, name_ranks

ASIDE = "aside"  # group_desc of process groups that a thread uses while training goes on
STALL_VAR = "DEEPSPEED_TIMEOUT"  # minutes; DeepSpeed's own variable for the timeout of collectives
MAX_STALL = 60 * 24 * 365


@dataclass(frozen=True)
class Limits:
    """In seconds, the same on all ranks. Only the time in which a process runs counts: a suspended one may be continued.

    period: between heartbeats. step: how long ranks wait for one that begins no collective in a step, at least: ten times the
    usual time, if that is longer (pace.py). long: the same in an evaluation or a save. stall: the same where it is not known
    how long it takes; longer than one rank may take alone to compile, read or hash. silence: without a heartbeat until a rank
    counts as dead, if that is shorter; longer than a file system may hang, since a page fault stops all threads of a process.
    suspicion: the same, once a collective has failed on any rank. grace: for a rank to end by itself once the cause is
    known."""

    period: float = 2.0
    step: float = 60.0
    long: float = 300.0
    stall: float = 1800.0
    silence: float = 300.0
    suspicion: float = 10.0
    grace: float = 10.0

    @property
    def collectives(self) -> timedelta:
        """Timeout of collectives: later than the watch, which names the rank at fault."""
        return timedelta(seconds=self.stall + self.silence)


def limits_of_environment() -> Limits:
    """The defaults, or the minutes that DEEPSPEED_TIMEOUT gives for whatever a rank does.

    Raises:
        UserError: If it is no number of minutes.
    """
    minutes = os.environ.get(STALL_VAR)
    if minutes is None:
        return Limits()
    if not minutes.isdecimal() or not 1 <= int(minutes) <= MAX_STALL:
        raise UserError(f"{STALL_VAR} is {minutes!r}: give whole minutes from 1 to {MAX_STALL}, or unset it")
    return Limits(**dict.fromkeys(("step", "long", "stall"), 60.0 * int(minutes)))


class RankFailed(RuntimeError):
    """Another rank failed, died, hung or was cut off; the message names it.

    Attributes:
        status: that the run ends with. One of a UserError's: that rank has shown its error.
    """

    def __init__(self, text: str, status: int = ExitStatus.DIED) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Peer:
    """What is known of a rank that this one watches.

    quiet: seconds without a heartbeat. behind: seconds in its phase without a new collective while another rank has begun more.
    limit: of its phase. busy: for which share of a step it waits for no other, None while that is not known."""

    limit: float
    beat: str = ""
    quiet: float = 0.0
    collectives: int = 0
    behind: float = 0.0
    phase: str = "starting"
    busy: float | None = None


class Watch:
    """Context manager around all work that communicates with other ranks; the process group must exist.

    An exception that leaves the block is reported to the other ranks. If it is a failed collective, RankFailed,
    which names the rank at fault, is raised instead. The threads end a rank that is stuck. pace: is to be told what this rank
    does. stacks: file to which this rank adds where its threads are when a rank hangs."""

    def __init__(self, topology: Topology, limits: Limits = Limits(), stacks: Path | None = None) -> None:
        self.topology, self.limits, self.stacks = topology, limits, stacks
        self.pace = Pace({"step": limits.step, "evaluation": limits.long, "save": limits.long}, limits.stall)
        self.peers = {rank: Peer(limits.stall) for rank in (range(topology.world_size) if topology.is_main else [0])}
        self.slow: set[int] = set()  # ranks that were reported
        self.rounds = 0  # of the thread that talks to the store
        self.suspected = 0.0  # seconds since a collective failed
        self.verdict: str | None = None
        self.status: int = ExitStatus.DIED  # of the verdict
        self.over, self.decided = threading.Event(), threading.Event()

    def __enter__(self) -> Self:
        if self.topology.world_size > 1:
            # Its own connection: the default one may be blocked.
            self.store = _get_default_store().clone()  # type: ignore[attr-defined]
            self.store.set(f"watch/process/{self.topology.rank}", f"host {socket.gethostname()}, process {os.getpid()}")
            self.threads = [threading.Thread(target=work, name="watch", daemon=True) for work in (self._run, self._guard)]
            for thread in self.threads:
                thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.topology.world_size == 1:
            return
        try:
            if isinstance(error, Exception):  # not a KeyboardInterrupt, which all ranks receive
                self._explain(error)
        finally:
            if error is None:
                self._leave(self.limits.stall)
            elif isinstance(error, Exception):
                self._leave(2 * self.limits.period)
            self.over.set()
            self.pace.shorter.set()  # wakes the thread that waits for it
            for thread in self.threads:
                thread.join(self.limits.grace)

    def _explain(self, error: Exception) -> None:
        """Tell the other ranks what failed here, or learn from them what failed elsewhere."""
        # A launcher that sees a rank end sends SIGTERM to the others. They are ending anyway, but first say why.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        line = f"{type(error).__name__}: " + str(error).strip().split("\n")[0]
        if _exchange_failed(error):
            self._tell("watch/suspicion", f"rank {self.topology.rank}: {line}")
        else:
            user_error = error if isinstance(error, UserError) else None
            status = user_error.status if user_error else ExitStatus.DIED
            is_first = self._decide(f"rank {self.topology.rank} failed: {line}", hangs=False, status=status)
            if is_first or (user_error and user_error.everywhere):
                return
        self.decided.wait(self.limits.silence + 2 * self.limits.period)
        if self.verdict:
            raise RankFailed(self.verdict, self.status) from error

    def _leave(self, patience: float) -> None:
        """Rank 0, whose process holds the store, waits up to `patience` seconds for the others to leave first."""
        deadline = time.monotonic() + patience
        with suppress(RuntimeError):  # the store has ended
            if not self.topology.is_main:
                self.store.set(f"watch/left/{self.topology.rank}", "")
                return
            others = [f"watch/left/{rank}" for rank in self.peers if rank]
            while not self.store.check(others) and time.monotonic() < deadline:
                time.sleep(0.02)

    def _tell(self, key: str, text: str) -> bool:
        """Set `key` for all ranks unless another rank did before; without a store there is nobody left to tell.

        Returns whether no other rank did."""
        with suppress(RuntimeError):
            return bool(self.store.compare_set(key, "", text) == text.encode())
        return True

    def _decide(self, cause: str, hangs: bool, status: int = ExitStatus.DIED) -> bool:
        """Let this be why the run ends, and its status, unless another rank was first. hangs: whether it is of interest where
        threads are. Returns whether no other was."""
        return self._tell("watch/verdict", json.dumps([cause, hangs, status]))

    def _run(self) -> None:
        """The thread that talks to the store: once a period, and between to tell that the limit has become shorter."""
        looked = time.monotonic()
        while True:
            self.pace.shorter.wait(looked + self.limits.period - time.monotonic())
            self.pace.shorter.clear()
            if self.over.is_set():
                break
            self.rounds += 1
            try:
                phase = self.pace.now
                beat = json.dumps([self.rounds, _collectives(), phase.name, phase.limit, self.pace.busy])
                self.store.set(f"watch/beat/{self.topology.rank}", beat)
                if time.monotonic() >= looked + self.limits.period:
                    self._look()
                    looked = time.monotonic()
            except RuntimeError:
                self.verdict = "rank 0 has ended, and with it the store at which the ranks met; see its last output"
            if self.verdict:
                self.decided.set()
                break
        if self.verdict and not self.over.wait(self.limits.grace):
            self._end(self.verdict)

    def _guard(self) -> None:
        """The thread without input and output, which notices that the other one is stuck."""
        rounds, stuck = self.rounds, 0.0
        while not self.over.wait(self.limits.period) and not self.decided.is_set():
            rounds, stuck = self.rounds, stuck + self.limits.period if rounds == self.rounds else 0.0
            if stuck > min(self.limits.silence, self.pace.now.limit):
                text = (
                    f"rank 0 is frozen or cut off: its store has not answered for {stuck:.0f} s; the run ends here, end rank "
                    "0's process and continue with --resume auto"
                )
                self._show_stacks(text)
                self._end(text)

    def _look(self) -> None:
        """Compare the heartbeats with the last ones seen; reach a verdict, or learn that of another rank."""
        for rank, peer in self.peers.items():
            key = f"watch/beat/{rank}"
            beat = self.store.get(key).decode() if self.store.check([key]) else ""
            peer.quiet += self.limits.period
            peer.behind += self.limits.period
            if beat != peer.beat:
                peer.beat, peer.quiet = beat, 0.0
                _, collectives, phase, peer.limit, peer.busy = json.loads(beat)
                if (collectives, phase) != (peer.collectives, peer.phase):
                    peer.collectives, peer.phase, peer.behind = collectives, phase, 0.0
        most = max(peer.collectives for peer in self.peers.values())
        for peer in self.peers.values():
            if peer.collectives == most:
                peer.behind = 0.0
        self._find_slow()
        suspicion = self.store.get("watch/suspicion").decode() if self.store.check(["watch/suspicion"]) else ""
        if cause := self._find_cause(suspicion):
            self._decide(cause, hangs=True)
        if self.store.check(["watch/verdict"]):
            cause, hangs, self.status = json.loads(self.store.get("watch/verdict"))
            verdict = f"{cause}; the run ends here, continue it with --resume auto"
            if hangs:
                self._show_stacks(verdict)  # before the main thread may leave the place where it is
            self.verdict = verdict

    def _find_slow(self) -> None:
        """Let the main thread report the ranks that are slow, each once."""
        busy = {rank: peer.busy for rank, peer in self.peers.items() if peer.busy is not None}
        if len(busy) == self.topology.world_size:
            for rank, usual in slow_ranks(busy).items():
                if rank not in self.slow:
                    self.slow.add(rank)
                    self.pace.remarks.append(
                        f"{self._name(rank)} keeps the others waiting: it reads samples and makes forward passes for "
                        f"{busy[rank]:.0%} of a step, the others for {usual:.0%}"
                    )

    def _find_cause(self, suspicion: str) -> str:
        """What is wrong with a rank that this one watches, or "". suspicion: the collective that failed on a rank, or ""."""
        limits = self.limits
        for rank, peer in self.peers.items():
            silence = limits.suspicion if suspicion else min(limits.silence, peer.limit)
            if peer.quiet > silence and not self.store.check([f"watch/left/{rank}"]):
                return f"{self._name(rank)} died, is frozen or was cut off in {peer.phase}: no heartbeat for {silence:.0f} s"
        if not self.topology.is_main:
            return ""
        # The rank that has begun the fewest collectives: those that wait for it may in turn be behind others.
        last = min(self.peers, key=lambda rank: self.peers[rank].collectives)
        if self.peers[last].behind > self.peers[last].limit:
            waiting = [rank for rank, peer in self.peers.items() if peer.collectives > self.peers[last].collectives]
            waited = f"{name_ranks(waiting)} waited {self.peers[last].limit:.0f} s for it"
            return f"{self._name(last)} hangs in {self.peers[last].phase}: {waited}"
        self.suspected += limits.period if suspicion else 0.0
        if self.suspected > limits.suspicion + 2 * limits.period:  # whoever died before it is known to be dead by now
            if self.peers[last].behind and not suspicion.startswith(f"rank {last}: "):
                return f"{self._name(last)} hangs in {self.peers[last].phase}, and others gave up waiting for it: {suspicion}"
            return f"all ranks are alive, but a collective failed, perhaps by the network: {suspicion}"
        return ""

    def _name(self, rank: int) -> str:
        key = f"watch/process/{rank}"
        return f"rank {rank} ({self.store.get(key).decode() if self.store.check([key]) else 'which never started'})"

    def _show_stacks(self, text: str) -> None:
        """Add to this rank's file why the run ends and where all threads of this process are."""
        if self.stacks:
            writing = threading.Thread(target=self._write_stacks, args=[self.stacks, text], daemon=True)
            writing.start()
            writing.join(self.limits.grace)  # the file system may be what hangs

    def _write_stacks(self, path: Path, text: str) -> None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                place = (
                    f"rank {self.topology.rank}, host {socket.gethostname()}, process {os.getpid()}, in {self.pace.now.name}"
                )
                file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, {place}: {text}\n")
                file.flush()
                faulthandler.dump_traceback(file)

    def _end(self, text: str) -> None:
        """Print the error and end the process, whatever its main thread and the reader of its output do."""
        lines = f"error on rank {self.topology.rank}: {text}\n"
        if text.startswith(f"rank {self.topology.rank} ("):
            frame = sys._current_frames()[threading.main_thread().ident or 0]
            lines += "it is here:\n" + "".join(traceback.format_stack(frame))
        _, writable, _ = select.select([], [2], [], 1.0)
        with suppress(OSError):
            if writable and self.status == ExitStatus.DIED:
                os.write(2, lines.encode())
        os._exit(self.status)


def _collectives() -> int:
    """How many collectives this rank has begun. All ranks begin the same ones, each in its own groups.

    Those of groups ASIDE do not count: a thread begins them, so one rank may be ahead there and behind in training."""
    count = 0
    for group in list(_world.pg_map):  # a copy: the main thread may make a group meanwhile
        if group.group_desc == ASIDE:
            continue
        with suppress(RuntimeError):  # a backend that does not count
            count += group._get_sequence_number_for_group()  # type: ignore[attr-defined]
    return count


def _exchange_failed(error: Exception) -> bool:
    """Whether a collective raised this because another rank is gone; torch has no exception type for gloo."""
    text = str(error)
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError)
        and any(word in text for word in ("gloo", "Connection closed", "Connection reset", "NCCL"))
    )
