"""Builds a run: its parts from their sections of the configuration, in the state that it starts from."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.node_traffic import spanning_warning
from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.fresh_start import check_new
from megatape.checkpoint.manager import CheckpointManager
from megatape.checkpoint.reader import CheckpointReader
from megatape.config import CheckpointConfig, Config, ModelConfig, save_config
from megatape.data.training.run_data import RunData
from megatape.distributed.mesh import make_mesh
from megatape.distributed.topology import Topology
from megatape.optim.schedules import LearningRate, check_new_run
from megatape.registry import CALLBACKS
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.reliability.shared_folder import check_shared
from megatape.reliability.watch.pace import Pace
from megatape.run_folder import RunFolder
from megatape.training.callbacks.callback import RunContext
from megatape.training.callbacks.collection import Callbacks
from megatape.training.reporting.environment_record import EnvironmentRecord
from megatape.training.reporting.speed import Speed
from megatape.training.reporting.start_report import StartReport
from megatape.training.run_state import RunFacts, RunState
from megatape.training.start import Start
from megatape.training.startup.build_engine import build_engine
from megatape.training.startup.build_readers import build_evaluator, build_loader
from megatape.training.startup.export_warning import export_warning
from megatape.training.startup.initial_state import InitialState, initial_state
from megatape.training.startup.introduction import introduction
from megatape.training.startup.resuming import check_continues, resumed_checkpoint
from megatape.training.state import TrainState
from megatape.training.steps.spike_policy import SpikePolicy
from megatape.training.trainer import Trainer
from megatape.utils.url_secrets import mask_secrets_in_json
from megatape.zero.engine import Engine

# Callbacks of every run.
BUILT_IN = ("metrics", "position_views", "profile")


def build_trainer(
    config: Config,
    data: RunData,
    topology: Topology,
    lease: Lease,
    start: Start | None = None,
    pace: Pace | None = None,
) -> Trainer:
    """Build a run, ready to continue from its starting point. Collective.

    Args:
        config: Configuration of the run.
        data: Data, opened by this rank.
        topology: All ranks.
        lease: Lease of the run's folder, held while the trainer exists.
        start: Starting point of the run, by default a new run.
        pace: Receives the phases of this rank, for the watch over the ranks.

    Raises:
        UserError, FileNotFoundError: Configuration, data and checkpoint do not fit together.
    """
    start = start or Start()
    folder = RunFolder(Path(config.run.directory))
    log = RunLog(folder, lease, topology)
    environment = RunEnvironment(folder, lease, topology, log, pace or Pace(), start.base)
    if start.resume is None:
        environment.on_main(lambda: check_new(folder))

    mesh = make_mesh(topology, config.parallel.axes)
    config.accumulation(topology.world_size)
    loader = build_loader(config.data, config.model, config.training, config.batches, data.train, mesh["batch"])
    engine, attention = build_engine(config, topology, mesh)
    num_samples = config.evaluation.samples
    evaluator = build_evaluator(config.data, config.model, config.training, num_samples, data, engine, environment.pace)

    speed = Speed(config.model, config.training, config.batches, config.data.sequence_length, topology.world_size)
    context = RunContext(config, folder, topology, engine, log, speed, data.train.unigram_entropy, start.profile)
    state = RunState(
        TrainState(config.data.sequence_length),
        SpikePolicy(config.training, config.batches),
        build_callbacks(config.logging.callbacks, context),
        RunFacts(topology.world_size, data.fingerprints, attention.name, mask_secrets_in_json(config.model_dump())),
    )
    checkpoints = build_checkpoints(environment, config.checkpoint, engine, state, data.tokenizer.files)
    layout = TrainingLayout.from_config(config, topology.world_size)
    warnings = _warnings(layout, topology, config.model, config.export.family)
    record = EnvironmentRecord(topology, attention.name, speed.sample_flops)
    text = introduction(config, data, engine, attention)
    report = StartReport(environment, record, engine.device.type, text, warnings)
    learning_rate = LearningRate(
        config.schedule.in_fractions(config.tokens),
        config.optimizer.learning_rate,
        config.batches,
        config.training.steps,
    )
    trainer = Trainer(
        config.training,
        config.evaluation.interval,
        config.checkpoint.interval,
        environment,
        engine,
        loader,
        evaluator,
        learning_rate,
        state,
        checkpoints,
        report,
    )

    check_shared(folder.directory, topology)
    may_continue = partial(check_continues, config, data, attention.name, start.allow_changes, environment)

    def fresh_state() -> InitialState:
        check_new_run(config.schedule)
        return initial_state(config.model, config.training, engine.state.parameters, environment, data.tokenizer)

    _load(trainer, start.resume, config.training.seed, may_continue, fresh_state)
    environment.on_main(lambda: _mark_folder(trainer, partial(save_config, config, folder.config)))
    return trainer


def build_callbacks(names: Sequence[str], context: RunContext) -> Callbacks:
    """Build the callbacks of every run, and the configured ones.

    Args:
        names: Names of logging.callbacks.
        context: Context of the run.
    """
    members = {}
    for name in dict.fromkeys((*BUILT_IN, *names)):
        members[name] = CALLBACKS[name].load()(context)
    return Callbacks(members, context.log)


def build_checkpoints(
    environment: RunEnvironment,
    config: CheckpointConfig,
    engine: Engine,
    state: RunState,
    tokenizer: Mapping[str, bytes],
) -> CheckpointManager:
    """Build the manager of a run's checkpoints.

    Args:
        environment: Environment of the run.
        config: Checkpoint section of the configuration.
        engine: Engine of the run.
        state: State of the run beside weights and optimizer state.
        tokenizer: Name -> content of the tokenizer's files.
    """
    return CheckpointManager(
        environment,
        config,
        engine,
        lambda: state.progress.step,
        state.saved_state,
        tokenizer,
        state.policy.protected,
        state.callbacks,
    )


def _warnings(layout: TrainingLayout, topology: Topology, model: ModelConfig, family: str | None) -> list[str]:
    """Return warnings about the configuration on the main rank, none on the others.

    Args:
        layout: Division of the training over ranks.
        topology: All ranks.
        model: Configuration of the model.
        family: Name of the model family for exports (export.family).
    """
    if not topology.is_main:
        return []
    warnings = [spanning_warning(layout, topology.local_size), export_warning(model, family)]
    return [warning for warning in warnings if warning]


def _load(
    trainer: Trainer,
    resume: str | None,
    seed: int,
    may_continue: Callable[[CheckpointReader], None],
    fresh_state: Callable[[], InitialState],
) -> None:
    """Bring a run into the state that it starts from. Collective.

    Args:
        trainer: The run.
        resume: Checkpoint to resume from, see `Start`.
        seed: Seed of the run.
        may_continue: Raises UserError if the run must not continue from a checkpoint.
        fresh_state: Returns the state of a new run.
    """
    # Our modules draw from generators of their own. This generator, which checkpoints store, is for a user's encodings and
    # backends.
    torch.manual_seed(seed + trainer.environment.topology.rank)
    reader = None
    if resume is not None:
        reader = resumed_checkpoint(resume, trainer.environment, may_continue)
    if reader is not None:
        trainer.resume(reader)
    else:
        trainer.checkpoints.load(fresh_state())


def _mark_folder(trainer: Trainer, write_config: Callable[[], None]) -> None:
    """Write the files of the folder that show that a run trains here.

    Args:
        trainer: The run, in the state that it starts from.
        write_config: Writes config.json.
    """
    folder = trainer.environment.folder
    if trainer.origin is not None:
        folder.mark_latest(trainer.origin)
    # The metrics come before config.json, so that config.json alone means that a file was removed.
    folder.metrics.touch()
    if trainer.origin is None or not trainer.is_finished:
        write_config()
