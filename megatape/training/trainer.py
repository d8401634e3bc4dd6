"""A training run: its model, its data, its progress, and the loop over its steps."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.node_traffic import spanning_warning
from megatape.attention.attend import select_backend
from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.fresh_start import check_new
from megatape.checkpoint.manager import CheckpointManager
from megatape.checkpoint.reader import CheckpointReader
from megatape.checkpoint.rng import restore_rng
from megatape.checkpoint.selection import find_checkpoint
from megatape.checkpoint.state import State
from megatape.config import Config, save_config
from megatape.data.training.run_data import RunData
from megatape.distributed.mesh import make_mesh
from megatape.distributed.topology import Topology
from megatape.errors import DataError
from megatape.model.requirements import attention_requirements
from megatape.optim.schedules import LearningRate
from megatape.registry import CALLBACKS
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.reliability.shared_folder import check_shared
from megatape.reliability.signals import STOPPING, handled
from megatape.reliability.watch.pace import Pace, PhaseKind
from megatape.run_folder import RunFolder
from megatape.training.callbacks.callback import RunContext
from megatape.training.callbacks.collection import Callbacks
from megatape.training.interrupt import Interrupt
from megatape.training.reporting.reporter import StepReporter
from megatape.training.reporting.speed import Speed
from megatape.training.saving import SaveSchedule
from megatape.training.startup.build import build_engine, build_evaluator, build_loader
from megatape.training.startup.environment_record import environment_record
from megatape.training.startup.initial_state import (
    check_continues,
    export_warning,
    initial_state,
    recorded_steps,
    restart,
    unevaluated_step,
)
from megatape.training.state import TrainState
from megatape.training.steps.divergence import DivergenceCheck
from megatape.training.steps.rollback import Rollbacks
from megatape.training.steps.spike_policy import Rollback, SpikePolicy
from megatape.training.steps.status import Requests
from megatape.training.steps.step import StepOutput
from megatape.training.steps.stepper import Stepper
from megatape.training.steps.unreadable import check_readable
from megatape.training.validation.evaluator import Validation
from megatape.utils.units import plural
from megatape.utils.url_secrets import mask_secrets_in_json

# Callbacks of every run.
BUILT_IN = ("metrics", "position_views", "profile")


@dataclass(frozen=True)
class Start:
    """Starting point of a run, beside its configuration.

    Attributes:
        resume: "auto" for the newest valid checkpoint of the run's folder (a new run if there is none), a checkpoint folder, or
            None for a new run.
        allow_changes: Whether a resumed run may change settings that must be confirmed (`confirmed` in docs/config.md).
        base: Present folder of the base of the checkpoint that the run starts from, if it has moved.
        profile: Number of steps to trace, 0 for none.
    """

    resume: str | None = None
    allow_changes: bool = False
    base: Path | None = None
    profile: int = 0


class Trainer:
    """A run, ready to continue from `state.step`. Collective over the ranks, like all its methods but `saved_state`.

    Args:
        config: Configuration of the run.
        data: Data, opened by this rank.
        topology: All ranks.
        lease: Lease of the run's folder, held while the trainer exists.
        start: Starting point of the run, by default a new run.
        pace: Receives the phases of this rank, for the watch over the ranks.

    Attributes:
        engine: Model and optimizer under DeepSpeed.
        backends: Attention backends that work on all ranks.
        attention: Attention backend of the first layer, for messages and checkpoints.
        loader: Reader of this rank's training samples.
        evaluator: Measures the loss on the validation splits.
        state: Progress of the run.
        num_steps: Number of steps made by this process, including steps that a rollback discards.
        policy: Spike policy.
        speed: Speed of the run's steps.
        callbacks: Callbacks of the run.
        checkpoints: Checkpoints of the run.
        stepper: Makes steps.
        reporter: Reports steps.
        divergence: Ends the run when its weights have diverged.
        rollbacks: Returns the run to a checkpoint after a spike.
        saves: Decides after which steps the run is saved.
        origin: Folder of the checkpoint that the run continues from, None for a new run.

    Raises:
        UserError, FileNotFoundError: Configuration, data and checkpoint do not fit together.
    """

    def __init__(
        self,
        config: Config,
        data: RunData,
        topology: Topology,
        lease: Lease,
        start: Start | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.config = config
        self.data = data
        self.topology = topology
        self.start = start or Start()
        self.pace = pace or Pace()
        self.folder = RunFolder(Path(config.run.directory))
        self.log = RunLog(self.folder, lease, topology)
        self.environment = RunEnvironment(self.folder, lease, topology, self.log, self.pace, self.start.base)
        if self.start.resume is None:
            self.environment.on_main(lambda: check_new(self.folder))

        self.mesh = make_mesh(topology, config.parallel.axes)
        self.loader = build_loader(config, data, self.mesh["batch"])
        self.engine, self.backends = build_engine(config, topology, self.mesh)
        self.attention = select_backend(attention_requirements(config, self.engine.device.type)[0], self.backends)
        self.evaluator = build_evaluator(config, data, self.engine)

        self.state = TrainState(config.data.sequence_length)
        self.num_steps = 0
        self.interrupt = Interrupt()
        self.policy = SpikePolicy(config.training, config.batches)
        self.speed = Speed(
            config.model,
            config.training,
            config.batches,
            config.data.sequence_length,
            topology.world_size,
        )
        self.callbacks = self._build_callbacks()
        self.checkpoints = CheckpointManager(
            self.environment,
            config.checkpoint,
            self.engine,
            lambda: self.state.step,
            self.saved_state,
            data.tokenizer.files,
            self.policy.protected,
            self.callbacks,
        )
        self.stepper = self._build_stepper()
        self.reporter = self._build_reporter(lease)
        self.divergence = DivergenceCheck(config.training.max_skipped_steps, self.folder, self.checkpoints, self.log)
        self.rollbacks = Rollbacks(self.policy, self.checkpoints, self._restore, self.pace, self.log)
        self.saves = SaveSchedule(self.checkpoints, config.checkpoint.interval)
        check_shared(self.folder.directory, topology)
        self.origin = self._load()
        self.environment.on_main(self._record)

    def train(self, ends_process: bool = False) -> bool:
        """Train to training.steps, or until a signal asks to stop (training/interrupt.py). Either way a checkpoint is left.

        A checkpoint that cannot be written is tried again at the next interval (checkpoint/manager.py). While the run's folder
        cannot be reached, training continues, until another run may have taken the folder over: then it waits
        (reliability/lease/lease.py). A step whose loss or gradient is not finite is skipped.

        Args:
            ends_process: Whether the process ends after training. It then ignores further signals.

        Returns:
            Whether a scheduler stopped the run before its end, so that it should be started again.

        Raises:
            TrainingDiverged: Too many consecutive steps were skipped, or the validation loss is not finite.
            NotSaved: The last checkpoint could not be written.
            LeaseLost: Another run has taken the folder.
            DataError: A rank cannot read its samples. A checkpoint is left.
        """
        signals = handled(self.interrupt.request, *STOPPING, ends_process=ends_process)
        saving = self.saves.saving_on_data_error(self.state)
        with signals, self.callbacks, saving, self.checkpoints, self.stepper:
            stop = self._begin()
            while self.state.step < self.config.training.steps and not stop:
                stop = self._advance()
            return self._end(stop)

    def _advance(self) -> bool:
        """Make a step, and what follows it: report, evaluation, checks and save. Returns whether to stop."""
        started = time.perf_counter()
        waited = self.stepper.prefetcher.waited
        output = self.train_step()
        seconds = time.perf_counter() - started
        waiting = self.stepper.prefetcher.waited - waited
        stop = output.status.requests.num_stops > 0
        self.reporter.report_busy((output.forward_seconds + waiting) / seconds)
        self.reporter.report_anomaly(output)
        if isinstance(output.decision, Rollback) and self._roll_back():
            return stop

        validation = None
        if self._is_evaluation_due and (self._is_last or not stop):
            try:
                validation = self.evaluate()
            except DataError:
                # The step has been made all the same, and is about to be saved.
                self.reporter.report_step(output, self.state, seconds)
                raise
            # A signal during an evaluation must not cost another step.
            stop = self._stop_requested()
        self.reporter.report_step(output, self.state, seconds, validation)
        self.divergence.check_step(output)
        if self.state.step % self.config.training.replica_check_interval == 0:
            self.engine.check_replicas()
        has_waited = self.saves.after_step(output, is_final=stop or self._is_last)
        if has_waited:
            stop = self._stop_requested()
        return stop

    def train_step(self) -> StepOutput:
        """Make the next step.

        Raises:
            DataError: A rank cannot read its samples. Raised on all ranks.
        """
        step = self.state.step + 1
        self.pace.enter(PhaseKind.STEP, f"step {step}", self.loader.sequence_length(self.state.samples))
        with self.pace.waiting("the writing of the profile"):
            self.callbacks.before_step(step)
        output = self.stepper.step(self.state)
        self.state.advance(output.samples, output.digest, updated=output.is_applied)
        self.num_steps += 1
        return output

    def evaluate(self) -> Validation:
        """Compute the loss on the validation splits, and the position view.

        Raises:
            TrainingDiverged: The loss is not finite.
            DataError: A rank cannot read its share, or no sample has a target. Raised on all ranks.
        """
        step = self.state.step
        self.pace.enter(PhaseKind.EVALUATION, f"the evaluation after step {step}")
        with self.pace.waiting("the reading of validation data"):
            batches = self.evaluator.read(self.state.selection)
        (num_unreadable,) = self.engine.sum_over_ranks(bool(batches.error))
        check_readable(num_unreadable, batches.error, f"the validation data after step {step}", self.topology)
        validation = self.evaluator.evaluate(batches)
        if validation is None:
            raise DataError(
                f"the evaluation after step {step}: the {self.config.evaluation.samples:,} validation samples of a corpus have "
                "no targets: raise evaluation.samples, or prepare other validation data"
            )
        self.divergence.check_validation(validation.loss, step)
        return validation

    def saved_state(self) -> State:
        """Return the rest of the training state, for the checkpoint's state.json."""
        return State(
            step=self.state.step,
            updates=self.state.updates,
            samples=self.state.samples,
            tokens=self.state.tokens,
            last_step=self.state.last_step,
            validation_selection=self.state.selection,
            world_size=self.topology.world_size,
            fingerprints=self.data.fingerprints,
            attention=self.attention,
            guard=self.policy.saved_state(),
            callbacks=self.callbacks.state_dict(),
            config=mask_secrets_in_json(self.config.model_dump()),
        )

    # Building and loading.

    def _build_callbacks(self) -> Callbacks:
        """Build the callbacks of every run, and those of logging.callbacks."""
        context = RunContext(
            config=self.config,
            folder=self.folder,
            topology=self.topology,
            engine=self.engine,
            log=self.log,
            speed=self.speed,
            unigram_entropy=self.data.train.unigram_entropy,
            profiled_steps=self.start.profile,
        )
        names = dict.fromkeys((*BUILT_IN, *self.config.logging.callbacks))
        return Callbacks({name: CALLBACKS[name].load()(context) for name in names}, self.log)

    def _build_stepper(self) -> Stepper:
        """Build the object that makes steps, with the learning rate of the configuration."""
        config = self.config
        learning_rate = LearningRate(
            config.schedule.in_fractions(config.tokens),
            config.optimizer.learning_rate,
            config.batches,
            config.training.steps,
        )
        return Stepper(
            self.engine,
            self.loader,
            self.policy,
            learning_rate.of_step,
            self._requests,
            self.pace,
        )

    def _build_reporter(self, lease: Lease) -> StepReporter:
        """Build the object that reports steps, while the lease of the run's folder is held."""
        return StepReporter(
            self.log,
            self.callbacks,
            lease,
            self.pace,
            self.data.train.order,
            lambda: self.interrupt.requested,
        )

    def _load(self) -> Path | None:
        """Load masters and optimizer state: from a checkpoint, whose folder it returns, or initial weights and zeros."""
        # Our modules draw from generators of their own. This generator, which checkpoints store, is for a user's encodings and
        # backends.
        torch.manual_seed(self.config.training.seed + self.topology.rank)
        if self.start.resume is not None:
            reader = find_checkpoint(self.start.resume, self.environment, self._check_continues)
            if reader is not None:
                self._restore(reader)
                self.policy.restore(reader.state.guard)
                return reader.directory
            restart(self.environment)
        parameters = self.engine.state.parameters
        self.checkpoints.load(initial_state(self.config, parameters, self.environment, self.data.tokenizer))
        return None

    def _check_continues(self, reader: CheckpointReader) -> None:
        """Check that the run may continue from a checkpoint."""
        check_continues(reader, self.config, self.data, self.attention, self.start.allow_changes, self.environment)

    def _restore(self, reader: CheckpointReader) -> None:
        """Return to the step of a checkpoint."""
        self.checkpoints.load(reader)
        self.state.restore(reader.state)
        self.callbacks.load_state_dict(reader.state.callbacks)
        self.stepper.forget_next_batch()
        snapshot = reader.rng_state(self.topology.rank)
        if snapshot is not None:
            restore_rng(snapshot)

    def _record(self) -> None:
        """Write the files of the folder that show that a run trains here."""
        if self.origin:
            self.folder.mark_latest(self.origin)
        # The metrics come before config.json, so that config.json alone means that a file was removed.
        self.folder.metrics.touch()
        is_finished = self.state.step >= self.config.training.steps
        if not (self.origin and is_finished):
            save_config(self.config, self.folder.config)

    # The start and the end of training.

    def _begin(self) -> bool:
        """Report where the run begins, and make the evaluation that a stop prevented. Returns whether to stop."""
        step = self.state.step
        steps = self.config.training.steps
        self.log.step = step
        if self.topology.is_main:
            self._record_start()
        self.callbacks.on_start(step)
        if step >= steps:
            self.log.info(f"already at step {step} of training.steps {steps}: nothing to do; raise training.steps to continue")
        stop = self._stop_requested()
        if stop or not self._is_evaluation_due:
            return stop
        metrics = unevaluated_step(self.environment, step)
        if metrics is None:
            return stop
        self.callbacks.on_step(replace(metrics, validation=self.evaluate()))
        return self._stop_requested()

    def _record_start(self) -> None:
        """Warn about the configuration, and record the event "started" or "resumed"."""
        layout = TrainingLayout.from_config(self.config, self.topology.world_size)
        spanning = spanning_warning(layout, self.topology.local_size)
        for warning in (spanning, export_warning(self.config)):
            if warning:
                self.log.warning(warning)
        step = self.state.step
        event: Any = "started"
        parts = [f"{plural(self.topology.world_size, 'rank')} on {self.engine.device.type}"]
        if self.origin:
            event = "resumed"
            parts.append(f"from {self.origin}")
        last = max(recorded_steps(self.environment), default=0)
        if last > step:
            parts.append(f"steps {step + 1} to {last} are made again")
        record = environment_record(self.topology, self.attention, self.speed.sample_flops)
        self.log.record(event, ", ".join(parts), environment=record)

    def _end(self, stop: bool) -> bool:
        """Save the remaining steps, and report how the run ends. Returns the result of `train`."""
        self.saves.save_rest(self.state)
        if not stop:
            self.log.record("finished")
            return False
        self.log.info(f"stopped on request after step {self.state.step}; --resume auto continues")
        self.log.record("stopped", "on request")
        (num_users,) = self.engine.sum_over_ranks(self.interrupt.by_user)
        return not self._is_last and num_users == 0

    # After a step.

    @property
    def _is_last(self) -> bool:
        """Whether the run has made its last step."""
        return self.state.step == self.config.training.steps

    @property
    def _is_evaluation_due(self) -> bool:
        """Whether the present step is evaluated."""
        return self._is_last or self.state.step % self.config.evaluation.interval == 0

    def _requests(self) -> Requests:
        """Return this rank's requests to the training loop."""
        return Requests(self.interrupt.requested, self.checkpoints.has_ended)

    def _stop_requested(self) -> bool:
        """Whether a signal has reached any rank. Collective, so that all stop at the same step."""
        (num_stops,) = self.engine.sum_over_ranks(self.interrupt.requested)
        return num_stops > 0

    def _roll_back(self) -> bool:
        """Return to a checkpoint after a spike, if there is a stable one. Returns whether there is."""
        description = self.rollbacks.roll_back(self.state)
        if not description:
            return False
        self.saves.after_rollback()
        self.log.step = self.state.step
        self.callbacks.on_start(self.state.step)
        self.log.record("rollback", description)
        self.log.info(f"rolled back {description}")
        return True
