"""The context passed to callbacks and sinks by a run, without a model."""

from typing import Any

from megatape.config import Config
from megatape.distributed.topology import Topology
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.run_folder import RunFolder
from megatape.training.callbacks.callback import RunContext
from megatape.training.callbacks.collection import Callbacks
from megatape.training.callbacks.metrics import Metrics
from megatape.training.callbacks.position_views import PositionViews
from megatape.training.reporting.speed import Speed

ALONE = Topology(0, 1, 0)


def make_context(config: Config, folder: RunFolder, lease: Lease | None = None, topology: Topology = ALONE) -> RunContext:
    """Return the context for a run in `folder`."""
    log = RunLog(folder, lease or Lease(folder.lease), topology)
    engine: Any = None
    speed = Speed(config.model, config.training, config.batches, config.data.sequence_length, topology.world_size)
    return RunContext(config, folder, topology, engine, log, speed, unigram_entropy=1.0)


def make_callbacks(context: RunContext) -> Callbacks:
    """Return the callbacks in every run, without profiling."""
    return Callbacks({"metrics": Metrics(context), "position_views": PositionViews(context)}, context.log)
