"""Where a run trains: its folder, its ranks, and its reports."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from megatape.distributed.exchange import on_main
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.reliability.pace import Pace
from megatape.reliability.run_log import RunLog
from megatape.run_folder import RunFolder
from megatape.utils.files import Result, retry_transient_errors


@dataclass(frozen=True)
class RunPlace:
    """Surroundings of a run, the same from its start to its end.

    Attributes:
        folder: the run's folder.
        lease: of the folder; partial checkpoints are named after it.
        topology: all ranks.
        log: prints lines and keeps events.
        pace: phases of this rank, for the watch over the ranks.
        base: present folder of the base of checkpoints, if it is not the one that they record (checkpoint/tensors.py).
    """

    folder: RunFolder
    lease: Lease
    topology: Topology
    log: RunLog
    pace: Pace
    base: Path | None = None

    def on_main(self, work: Callable[[], Result]) -> Result:
        """The value of `work` on the main rank, on every rank. Collective.

        Args:
            work: is called again after a transient error of the file system.

        Raises:
            UserError, OSError: on all ranks, the error of the main rank.
        """
        return on_main(lambda: retry_transient_errors(work), self.topology)
