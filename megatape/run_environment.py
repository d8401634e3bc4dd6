"""Run environment: run directory, lease, ranks, log and timeouts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from megatape.distributed.topology import Topology
from megatape.distributed.values.exchange import on_main
from megatape.reliability.goodput.process_clock import ProcessClock
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.reliability.watch.pace import Pace
from megatape.run_folder import RunFolder
from megatape.utils.files.retries import Result, retry_transient_errors


@dataclass(frozen=True)
class RunEnvironment:
    """Run environment, the same from the start of the run to its end.

    Attributes:
        folder: Run directory.
        lease: Lease of the run directory. Names of partial checkpoints contain its nonce.
        topology: All ranks.
        log: Run log: console output and events.
        pace: This rank's phases, for the watch over the ranks.
        base: Present folder of the checkpoints' base if it was moved (checkpoint/format/frozen_weights.py), else None.
        clock: Clock of this process: where its time went.
    """

    folder: RunFolder
    lease: Lease
    topology: Topology
    log: RunLog
    pace: Pace
    base: Path | None = None
    clock: ProcessClock = field(default_factory=ProcessClock)

    def on_main(self, work: Callable[[], Result]) -> Result:
        """Run `work` on the main rank and return its result on every rank. Collective.

        Args:
            work: Function to call, and to call again after transient file-system errors.

        Raises:
            UserError, OSError: The main rank's error, raised on every rank.
        """
        return on_main(lambda: retry_transient_errors(work), self.topology)
