"""A training run: its progress, and the loop over its steps."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.manager import CheckpointManager
from megatape.checkpoint.reader import CheckpointReader
from megatape.checkpoint.rng import restore_rng
from megatape.data.training.loader import Loader
from megatape.errors import DataError
from megatape.moved_modules import old_names
from megatape.optim.schedules import LearningRate
from megatape.reliability.signals import STOPPING, handled
from megatape.reliability.watch.pace import PhaseKind
from megatape.training.interrupt import Interrupt
from megatape.training.milestones import Milestones
from megatape.training.reporting.recorded_steps import unevaluated_step
from megatape.training.reporting.reporter import StepReporter
from megatape.training.reporting.start_report import StartReport
from megatape.training.run_state import RunState
from megatape.training.saving import SaveSchedule
from megatape.training.steps.divergence import DivergenceCheck
from megatape.training.steps.output import StepOutput
from megatape.training.steps.status import Requests
from megatape.training.steps.stepper import Stepper
from megatape.training.validation.evaluator import Evaluator
from megatape.training.validation.result import Validation
from megatape.zero.engine import Engine


class Trainer:
    """A run, which starts from the state that `resume` or `checkpoints.load` gives it. Collective, like all its methods.

    startup/build_trainer.py builds it from a configuration.

    Args:
        milestones: Last step, and steps after which the run is evaluated and checked.
        environment: Environment of the run.
        engine: Model and optimizer under DeepSpeed.
        loader: Reader of this rank's training samples.
        evaluator: Measures the loss on the validation splits.
        learning_rate: Learning rate of every step.
        run_state: State of the run beside weights and optimizer state.
        checkpoints: Checkpoints of the run.
        saves: Decides after which steps the run is saved.
        divergence: Ends the run when its weights have diverged.
        start_report: Reports where training starts.

    Attributes:
        environment: Environment of the run.
        engine: Model and optimizer under DeepSpeed.
        loader: Reader of this rank's training samples.
        attention: Attention backend of the first layer, for messages.
        state: Progress of the run.
        num_steps: Number of steps made by this process, including steps that a rollback discards.
        callbacks: Callbacks of the run.
        checkpoints: Checkpoints of the run.
        stepper: Makes steps.
        origin: Folder of the checkpoint that the run continues from, None for a new run.
    """

    def __init__(
        self,
        milestones: Milestones,
        environment: RunEnvironment,
        engine: Engine,
        loader: Loader,
        evaluator: Evaluator,
        learning_rate: LearningRate,
        run_state: RunState,
        checkpoints: CheckpointManager,
        saves: SaveSchedule,
        divergence: DivergenceCheck,
        start_report: StartReport,
    ) -> None:
        self.environment = environment
        self.engine = engine
        self.loader = loader
        self.attention = run_state.facts.attention
        self.state = run_state.progress
        self.callbacks = run_state.callbacks
        self.checkpoints = checkpoints
        self.num_steps = 0
        self.origin: Path | None = None

        self._milestones = milestones
        self._evaluator = evaluator
        self._policy = run_state.policy
        self._saves = saves
        self._divergence = divergence
        self._start_report = start_report
        self._interrupt = Interrupt(engine.sum_over_ranks)
        self.stepper = Stepper(engine, loader, self._policy, learning_rate.of_step, self._requests, environment.pace)
        self._reporter = StepReporter(
            environment.log,
            self.callbacks,
            environment.lease,
            environment.pace,
            loader.data.order,
            lambda: self._interrupt.is_requested,
        )

    @property
    def is_finished(self) -> bool:
        """Whether the run has made all its steps."""
        return self._milestones.is_finished(self.state.step)

    def resume(self, reader: CheckpointReader) -> None:
        """Continue from a checkpoint."""
        self.checkpoints.load(reader)
        self._restore(reader)
        self._policy.restore(reader.state.guard)
        self.origin = reader.directory

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
        signals = handled(self._interrupt.request, *STOPPING, ends_process=ends_process)
        saving = self._saves.saving_on_data_error(self.state)
        with signals, self.callbacks, saving, self.checkpoints, self.stepper:
            self._begin()
            while not self.is_finished and not self._interrupt.is_agreed:
                self._advance()
            return self._end()

    def _advance(self) -> None:
        """Make a step, and what follows it: report, evaluation, checks and save."""
        output, seconds = self._timed_step()
        self._interrupt.agree(output.status.requests.num_stops)
        self._reporter.report_anomaly(output)
        if output.wants_rollback and self.roll_back():
            return

        step = self.state.step
        is_last = self._milestones.is_last(step)
        validation = None
        if self._milestones.is_evaluated(step) and (is_last or not self._interrupt.is_agreed):
            try:
                validation = self.evaluate()
            except DataError:
                # The step has been made all the same, and is about to be saved.
                self._reporter.report_step(output, self.state, seconds)
                raise
            # A signal during an evaluation must not cost another step.
            self._interrupt.poll()
        self._reporter.report_step(output, self.state, seconds, validation)
        self._divergence.check_step(output)
        if self._milestones.is_checked(step):
            self.engine.check_replicas()
        has_waited = self._saves.after_step(output, is_final=is_last or self._interrupt.is_agreed)
        if has_waited:
            self._interrupt.poll()

    def _timed_step(self) -> tuple[StepOutput, float]:
        """Make the next step, and report how busy this rank was. Returns the result, and the duration in seconds."""
        started = time.perf_counter()
        waited_before = self.stepper.prefetcher.waited
        output = self.train_step()
        seconds = time.perf_counter() - started
        waited = self.stepper.prefetcher.waited - waited_before
        self._reporter.report_busy((output.forward_seconds + waited) / seconds)
        return output, seconds

    def train_step(self) -> StepOutput:
        """Make the next step.

        Raises:
            DataError: A rank cannot read its samples. Raised on all ranks.
        """
        step = self.state.step + 1
        self.environment.pace.enter(PhaseKind.STEP, f"step {step}", self.loader.sequence_length(self.state.samples))
        with self.environment.pace.waiting("the writing of the profile"):
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
        self.environment.pace.enter(PhaseKind.EVALUATION, f"the evaluation after step {step}")
        validation = self._evaluator.evaluate(step, self.state.selection)
        self._divergence.check_validation(validation.loss, step)
        return validation

    def roll_back(self) -> bool:
        """Return to the newest valid stable checkpoint after a spike, and skip the samples of the steps since.

        Returns:
            Whether the run has gone back. It continues instead if no checkpoint is stable, or if it has only just gone back.
        """
        log = self.environment.log
        samples = self.state.samples
        if not self._policy.may_roll_back(samples):
            log.warning("the run has only just gone back: the run continues without the step")
            return False
        reader = self.checkpoints.roll_back(partial(self._policy.stable_checkpoints, step=self.state.step))
        if reader is None:
            log.warning("there is no checkpoint to go back to: the run continues without the step")
            return False

        with self.environment.pace.waiting("the return to a checkpoint"):
            self._restore(reader)
        first, last = self._policy.skip_after_rollback(reader.state.guard, range(reader.samples, samples))
        self._saves.after_rollback()
        log.step = self.state.step
        self.callbacks.on_start(self.state.step)
        description = f"to {reader.directory}; samples {first} to {last} will be skipped"
        log.record("rollback", description)
        log.info(f"rolled back {description}")
        return True

    def _restore(self, reader: CheckpointReader) -> None:
        """Return to the step of a loaded checkpoint, with everything that it stores but the spike policy."""
        self.state.restore(reader.state)
        self.callbacks.load_state_dict(reader.state.callbacks)
        self.stepper.forget_next_batch()
        snapshot = reader.rng_state(self.environment.topology.rank)
        if snapshot is not None:
            restore_rng(snapshot)

    def _begin(self) -> None:
        """Report where the run begins, and make the evaluation that a stop prevented."""
        step = self.state.step
        log = self.environment.log
        log.step = step
        self._start_report.write(step, self.origin)
        self.callbacks.on_start(step)
        if self.is_finished:
            steps = self._milestones.num_steps
            log.info(f"already at step {step} of training.steps {steps}: nothing to do; raise training.steps to continue")
        self._interrupt.poll()
        if self._interrupt.is_agreed or not self._milestones.is_evaluated(step):
            return
        metrics = unevaluated_step(self.environment, step)
        if metrics is None:
            return
        self.callbacks.on_step(replace(metrics, validation=self.evaluate()))
        self._interrupt.poll()

    def _end(self) -> bool:
        """Save the remaining steps, and report how the run ends. Returns the result of `train`."""
        self._saves.save_rest(self.state)
        if not self._interrupt.is_agreed:
            self.environment.log.record("finished")
            return False
        self.environment.log.info(f"stopped on request after step {self.state.step}; --resume auto continues")
        self.environment.log.record("stopped", "on request")
        is_from_user = self._interrupt.is_from_user()
        return not self._milestones.is_last(self.state.step) and not is_from_user

    def _requests(self) -> Requests:
        """Return this rank's requests to the training loop."""
        return Requests(self._interrupt.is_requested, self.checkpoints.has_ended)


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
