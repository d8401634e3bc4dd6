"""The environment for a run continuing a copy of the folder in tests/compatibility."""

import shutil
from pathlib import Path

from megatape.checkpoint.load.reader import CheckpointReader
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.reliability.watch.pace import Pace
from megatape.run_environment import RunEnvironment
from megatape.run_folder import RunFolder

FIXTURE = Path(__file__).parents[2] / "compatibility" / "fixtures" / "run"
# Steps of the checkpoints in the folder
FIRST_STEP = 2
LAST_STEP = 4


def copied_run(folder: Path) -> RunEnvironment:
    """Copy the run to a folder, and return its environment on one rank.

    Args:
        folder: Folder to copy to, which must not exist.
    """
    shutil.copytree(FIXTURE, folder)
    run = RunFolder(folder)
    lease = Lease(run.lease)
    topology = Topology(0, 1, 0)
    return RunEnvironment(run, lease, topology, RunLog(run, lease, topology), Pace())


def accept(reader: CheckpointReader) -> None:
    """Accept every checkpoint."""
