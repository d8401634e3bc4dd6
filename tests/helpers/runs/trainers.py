"""Trainers of runs for tests that step or disturb them."""

from collections.abc import Callable
from pathlib import Path

from megatape.config import Config
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.training.start import Start
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.trainer import Trainer
from megatape.utils.pytorch.recorder import Recorder
from tests.helpers.runs.run_data import open_run_data


def trainer_without_lease(
    config: Config,
    topology: Topology,
    start: Start | None = None,
    make_recorder: Callable[[], Recorder] | None = None,
) -> Trainer:
    """Build the trainer of a run whose folder no other process uses, so that its lease is not taken."""
    lease = Lease(RunFolder(Path(config.run.directory)).lease)
    return build_trainer(config, open_run_data(config), topology, lease, start, make_recorder=make_recorder)
