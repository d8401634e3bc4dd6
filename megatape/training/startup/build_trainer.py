"""Builds a trainer: its parts from their sections of the configuration, in the state that the run starts from."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.traffic.node_traffic import spanning_warning
from megatape.checkpoint.load.fresh_start import check_new
from megatape.checkpoint.manager import CheckpointManager
from megatape.config import Config, LoggingConfig, save_config
from megatape.data.training.run_data import RunData
from megatape.distributed.mesh import make_mesh
from megatape.distributed.topology import Topology
from megatape.optim.learning_rate import LearningRate
from megatape.registry import CALLBACKS, SINKS
from megatape.reliability.goodput.parts import TimePart
from megatape.reliability.goodput.process_clock import ProcessClock
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.reliability.shared_folder import check_shared
from megatape.reliability.watch.pace import Pace
from megatape.run_environment import RunEnvironment
from megatape.run_folder import RunFolder
from megatape.training.callbacks.callback import RunContext
from megatape.training.callbacks.collection import Callbacks
from megatape.training.interrupt import Interrupt
from megatape.training.progress import Progress
from megatape.training.reporting.environment_record import EnvironmentRecord
from megatape.training.reporting.speed import Speed
from megatape.training.reporting.start_report import StartReport
from megatape.training.run_schedule import RunSchedule
from megatape.training.run_state import RunFacts, RunState
from megatape.training.start import Start
from megatape.training.startup.build_evaluator import build_evaluator
from megatape.training.startup.build_loader import build_loader
from megatape.training.startup.engine.build_engine import build_engine
from megatape.training.startup.export_warning import export_warning
from megatape.training.startup.run_description import describe_run
from megatape.training.startup.state.load_starting_state import load_starting_state
from megatape.training.steps.spike_policy import SpikePolicy
from megatape.training.steps.status import Requests
from megatape.training.steps.stepper import Stepper
from megatape.training.trainer import Trainer
from megatape.utils.pytorch.recorder import Recorder
from megatape.utils.text.url_secrets import mask_secrets_in_json

# Callbacks of every run.
BUILT_IN = ("metrics", "position_views", "profile", "exports")


def build_trainer(
    config: Config,
    data: RunData,
    topology: Topology,
    lease: Lease,
    start: Start | None = None,
    pace: Pace | None = None,
    clock: ProcessClock | None = None,
    make_recorder: Callable[[], Recorder] | None = None,
) -> Trainer:
    """Build a trainer, ready to continue from its starting point. Collective.

    Args:
        config: Configuration.
        data: Data, opened by this rank.
        topology: All ranks.
        lease: Lease on the run directory, held while the trainer exists.
        start: Starting point, by default a new run.
        pace: Receives this rank's phases, for the watch.
        clock: Clock of this process, by default a new one.
        make_recorder: Returns a recorder of forward and backward passes (training.cuda_graphs), by default one for GPUs.

    Raises:
        UserError, FileNotFoundError: Configuration, data and checkpoint do not fit together.
    """
    start = start or Start()
    folder = RunFolder(Path(config.run.directory))
    clock = clock or ProcessClock()
    clock.begin(TimePart.SETUP)
    log = RunLog(folder, lease, topology, clock)
    environment = RunEnvironment(
        folder=folder, lease=lease, topology=topology, log=log, pace=pace or Pace(), base=start.base, clock=clock
    )
    if not start.resumes:
        environment.on_main(lambda: check_new(folder))

    mesh = make_mesh(topology, config.parallel.axes)
    config.check_divides(topology.world_size)
    loader = build_loader(config.data, config.model, config.training, config.batches, data.train, mesh["batch"])
    engine, attention = build_engine(config, topology, mesh, clock, make_recorder)
    evaluator = build_evaluator(config.data, config.model, config.training, config.evaluation, data, engine, environment.pace)

    speed = Speed(config.model, config.training, config.batches, config.data.sequence_length, topology.world_size)
    context = RunContext(
        config=config,
        folder=folder,
        topology=topology,
        engine=engine,
        log=log,
        speed=speed,
        unigram_entropy=data.train.unigram_entropy,
        profiled_steps=start.profile,
    )
    run_state = RunState(
        progress=Progress(config.data.sequence_length),
        policy=SpikePolicy(config.training, config.batches),
        callbacks=build_callbacks(config.logging.callbacks, context),
        facts=_run_facts(config, data, topology, attention.name),
    )
    checkpoints = CheckpointManager(environment, config.checkpoint, engine, run_state)
    interrupt = Interrupt(engine.sum_over_ranks)
    learning_rate = LearningRate.of_run(config)
    requests = partial(_requests, interrupt, checkpoints)
    record = EnvironmentRecord(topology, attention.name, speed.sample_flops)
    description = describe_run(config, data, engine, attention)

    trainer = Trainer(
        environment,
        run_state,
        schedule=_schedule(config, engine.device),
        stepper=Stepper(engine, loader, run_state.policy, learning_rate.of_step, requests, environment.pace),
        evaluator=evaluator,
        checkpoints=checkpoints,
        interrupt=interrupt,
        start_report=StartReport(environment, record, engine.device.type, description, _warnings(config, topology)),
    )
    check_shared(folder.directory, topology)
    load_starting_state(trainer, config, data, start)
    environment.on_main(lambda: _mark_folder(trainer, config))
    return trainer


def import_callbacks(config: LoggingConfig) -> None:
    """Import callbacks and sinks before they are needed, so that a process waiting for its rank has imported them.

    Args:
        config: Section `logging`.
    """
    for name in (*BUILT_IN, *config.callbacks):
        CALLBACKS[name].load()
    for name in config.sinks:
        with suppress(ImportError):
            # The check of packages reports it (rank_agreement.py).
            SINKS[name].load()


def build_callbacks(names: Sequence[str], context: RunContext) -> Callbacks:
    """Build the callbacks of every run, and the configured ones.

    Args:
        names: Names in logging.callbacks.
        context: Run context, passed to each callback.
    """
    members = {}
    for name in dict.fromkeys((*BUILT_IN, *names)):
        members[name] = CALLBACKS[name].load()(context)
    return Callbacks(members, context.log)


def _run_facts(config: Config, data: RunData, topology: Topology, attention: str) -> RunFacts:
    return RunFacts(
        world_size=topology.world_size,
        fingerprints=data.fingerprints,
        attention=attention,
        config=mask_secrets_in_json(config.model_dump()),
        tokenizer=data.tokenizer.files,
    )


def _schedule(config: Config, device: torch.device) -> RunSchedule:
    computation_check_interval = config.training.computation_check_interval
    if device.type != "cpu" and not config.training.deterministic:
        # Kernels that add in any order do not repeat their results.
        computation_check_interval = 0
    return RunSchedule(
        num_steps=config.training.steps,
        evaluation_interval=config.evaluation.interval,
        save_interval=config.checkpoint.interval,
        replica_check_interval=config.training.replica_check_interval,
        computation_check_interval=computation_check_interval,
        max_skipped_steps=config.training.max_skipped_steps,
    )


def _requests(interrupt: Interrupt, checkpoints: CheckpointManager) -> Requests:
    """Return this rank's requests to the training loop."""
    return Requests(interrupt.is_requested, checkpoints.save_has_ended())


def _warnings(config: Config, topology: Topology) -> list[str]:
    """Return warnings about the configuration on the main rank, none on the others."""
    if not topology.is_main:
        return []
    layout = TrainingLayout.from_config(config, topology.world_size)
    warnings = [spanning_warning(layout, topology.local_size), export_warning(config.model, config.export.family)]
    return [warning for warning in warnings if warning is not None]


def _mark_folder(trainer: Trainer, config: Config) -> None:
    """Write the files that show that a run trains in this directory, among them config.json."""
    folder = trainer.environment.folder
    if trainer.origin is not None:
        folder.mark_latest(trainer.origin)
    # The metrics come before config.json, so that config.json alone means that a file was removed.
    folder.metrics.touch()
    if trainer.origin is None or not trainer.is_finished:
        save_config(config, folder.config)
