"""The training loop: step, evaluate, report, check, save."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from megatape.checkpoint.format.rng import restore_rng
from megatape.checkpoint.load.reader import CheckpointReader
from megatape.checkpoint.manager import CheckpointManager
from megatape.errors import DataError
from megatape.reliability.goodput.parts import TimePart
from megatape.reliability.signals import STOPPING, handled
from megatape.reliability.watch.pace import PhaseKind
from megatape.run_environment import RunEnvironment
from megatape.training.interrupt import Interrupt
from megatape.training.reporting.recorded_steps import unevaluated_step
from megatape.training.reporting.reporter import StepReporter
from megatape.training.reporting.start_report import StartReport
from megatape.training.run_schedule import RunSchedule
from megatape.training.run_state import RunState
from megatape.training.saving import SaveSchedule
from megatape.training.steps.divergence import DivergenceCheck
from megatape.training.steps.output import StepOutput
from megatape.training.steps.stepper import Stepper
from megatape.training.validation.evaluator import Evaluator
from megatape.training.validation.result import Validation


class Trainer:
    """Trains a model: makes steps, and evaluates, reports and saves between them. Collective, like all its methods.

    startup/build_trainer.py builds it from a configuration, and loads the state it starts from with `resume` or
    `checkpoints.load`.

    Args:
        environment: Run directory, lease, ranks, log and watch.
        run_state: Progress, spike policy and callbacks, which checkpoints store in addition to the weights.
        schedule: Last step, and intervals between evaluations, saves and checks.
        stepper: Makes optimizer steps.
        evaluator: Measures the validation loss.
        checkpoints: Saves and loads checkpoints.
        interrupt: Requests to stop.
        start_report: Report about the start of training.

    Attributes:
        progress: Progress of the run.
        callbacks: Callbacks, including sinks.
        attention: Attention backend of the first layer, for messages.
        engine: Model and optimizer under DeepSpeed.
        loader: Reader of this rank's training samples.
        num_steps: Steps made by this process, including steps that a rollback discards.
        origin: Checkpoint that the run continues from, or None for a new run.
    """

    def __init__(
        self,
        environment: RunEnvironment,
        run_state: RunState,
        schedule: RunSchedule,
        stepper: Stepper,
        evaluator: Evaluator,
        checkpoints: CheckpointManager,
        interrupt: Interrupt,
        start_report: StartReport,
    ) -> None:
        self.environment = environment
        self.progress = run_state.progress
        self.callbacks = run_state.callbacks
        self.attention = run_state.facts.attention
        self.stepper = stepper
        self.engine = stepper.engine
        self.loader = stepper.loader
        self.checkpoints = checkpoints
        self.num_steps = 0
        self.origin: Path | None = None

        self._schedule = schedule
        self._policy = run_state.policy
        self._evaluator = evaluator
        self._interrupt = interrupt
        self._clock = environment.clock
        self._saves = SaveSchedule(checkpoints, schedule.save_interval, self._clock)
        self._divergence = DivergenceCheck(schedule.max_skipped_steps, environment.folder, checkpoints, environment.log)
        self._start_report = start_report
        self._reporter = StepReporter(environment, self.callbacks, self.loader.data.order, interrupt)

    @property
    def is_finished(self) -> bool:
        """Whether the run has made all its steps."""
        return self._schedule.is_finished(self.progress.step)

    def train(self, ends_process: bool = False) -> bool:
        """Train to training.steps, or until a signal asks to stop (training/interrupt.py). Either way a checkpoint remains.

        If a checkpoint cannot be written, the next interval tries again (checkpoint/manager.py). If the run directory cannot be
        reached, training continues until another run could have taken it over, and then waits (reliability/lease/lease.py).
        Steps with a non-finite loss or gradient are skipped.

        Args:
            ends_process: Whether the process ends after training. It then ignores further signals.

        Returns:
            Whether a scheduler stopped the run before its last step, so that it should be started again.

        Raises:
            TrainingDiverged: Too many consecutive steps were skipped, or the validation loss is not finite.
            NotSaved: The last checkpoint could not be written.
            LeaseLost: Another run has taken over the run directory.
            DataError: A rank cannot read its samples. A checkpoint remains.
        """
        signals = handled(self._interrupt.request, *STOPPING, ends_process=ends_process)
        saving = self._saves.saving_on_data_error(self.progress)
        self._clock.begin(TimePart.OTHER)
        with signals, self.callbacks, saving, self.checkpoints, self.stepper:
            self._begin()
            while not self.is_finished and not self._interrupt.is_agreed:
                self._advance()
            return self._end()

    def _begin(self) -> None:
        """Report where the run starts, and make up for an evaluation that a stop prevented."""
        step = self.progress.step
        log = self.environment.log
        log.step = step
        self._start_report.write(step, self.origin)
        self.callbacks.on_start(step)
        if self.is_finished:
            steps = self._schedule.num_steps
            log.info(f"already at step {step} of training.steps {steps}: nothing to do; raise training.steps to continue")
        self._interrupt.poll()
        if self._interrupt.is_agreed or not self._schedule.is_evaluation_due(step):
            return
        metrics = unevaluated_step(self.environment, step)
        if metrics is None:
            return
        self.callbacks.on_step(replace(metrics, validation=self.evaluate()))
        self._interrupt.poll()

    def _advance(self) -> None:
        """Make one step, then evaluate, report, check and save what is due after it."""
        with self._clock.measure(TimePart.REPEATED_STEPS) as measured:
            output = self.train_step()
        seconds = measured.seconds
        self._interrupt.agree(output.status.requests.num_stops)
        self._reporter.report_busy(output.busy_seconds / seconds)
        self._reporter.report_anomaly(output)
        if output.wants_rollback and self.roll_back():
            return
        self._clock.finish_step(output.step, seconds, output.read_seconds, output.is_applied)

        validation = None
        if self._is_evaluation_due():
            try:
                validation = self.evaluate()
            except DataError:
                # The step was made nevertheless, and is about to be saved.
                self._report_step(output, seconds)
                raise
            # A signal while evaluating must not cost another step.
            self._interrupt.poll()
        self._report_step(output, seconds, validation)

        self._divergence.check_step(output)
        if self._schedule.is_replica_check_due(self.progress.step):
            with self._clock.measure(TimePart.VERIFICATION):
                self.engine.check_replicas()
        if self._schedule.is_computation_check_due(self.progress.step):
            with self._clock.measure(TimePart.VERIFICATION):
                self.stepper.check_computation(self.progress)

        is_final = self._schedule.is_last(self.progress.step) or self._interrupt.is_agreed
        has_waited = self._saves.after_step(output, is_final)
        if has_waited:
            self._interrupt.poll()

    def _report_step(self, output: StepOutput, seconds: float, validation: Validation | None = None) -> None:
        with self._clock.measure(TimePart.REPORTING):
            self._reporter.report_step(output, self.progress, seconds, validation)

    def train_step(self) -> StepOutput:
        """Make the next step: read its batches, run forward and backward passes, and update (steps/stepper.py).

        Raises:
            DataError: A rank cannot read its samples. Raised on all ranks.
        """
        step = self.progress.step + 1
        self.environment.pace.enter(PhaseKind.STEP, f"step {step}", self.loader.sequence_length(self.progress.samples))
        with self.environment.pace.waiting("the writing of the profile"):
            self.callbacks.before_step(step)
        output = self.stepper.step(self.progress)
        self.progress.advance(output.samples, output.digest, updated=output.is_applied)
        self.num_steps += 1
        return output

    def _is_evaluation_due(self) -> bool:
        """Whether to evaluate now. Before its last step, a run asked to stop leaves that to its next start (`_begin`)."""
        step = self.progress.step
        if self._interrupt.is_agreed and not self._schedule.is_last(step):
            return False
        return self._schedule.is_evaluation_due(step)

    def evaluate(self) -> Validation:
        """Compute the validation loss, and the position view.

        Raises:
            TrainingDiverged: The loss is not finite.
            DataError: A rank cannot read its samples, or none has a target. Raised on all ranks.
        """
        step = self.progress.step
        self.environment.pace.enter(PhaseKind.EVALUATION, f"the evaluation after step {step}")
        with self._clock.measure(TimePart.EVALUATIONS):
            validation = self._evaluator.evaluate(step, self.progress.selection)
        self._divergence.check_validation(validation.loss, step)
        return validation

    def roll_back(self) -> bool:
        """Return to the newest valid stable checkpoint after a spike, and skip the samples seen since.

        Returns:
            Whether the run has gone back. It continues instead if no checkpoint is stable, or if it has only just gone back.
        """
        log = self.environment.log
        samples = self.progress.samples
        if not self._policy.may_roll_back(samples):
            log.warning("the run has only just gone back: the run continues without the step")
            return False
        reader = self.checkpoints.roll_back(partial(self._policy.stable_checkpoints, step=self.progress.step))
        if reader is None:
            log.warning("there is no checkpoint to go back to: the run continues without the step")
            return False

        with self.environment.pace.waiting("the return to a checkpoint"):
            self._restore(reader)
        first, last = self._policy.skip_after_rollback(reader.state.spike_policy, range(reader.samples, samples))
        self._saves.after_rollback()
        self._divergence.after_rollback()
        self._clock.forget_steps()
        log.step = self.progress.step
        self.callbacks.on_start(self.progress.step)
        description = f"to {reader.directory}; samples {first} to {last} will be skipped"
        log.record("rollback", description)
        log.info(f"rolled back {description}")
        return True

    def _end(self) -> bool:
        """Save unsaved steps, and report how the run ends. Returns the result of `train`."""
        self._saves.save_remaining(self.progress)
        if not self._interrupt.is_agreed:
            self.environment.log.record("finished")
            return False
        self.environment.log.info(f"stopped on request after step {self.progress.step}; --resume auto continues")
        self.environment.log.record("stopped", "on request")
        is_from_user = self._interrupt.ask_if_from_user()
        return not self._schedule.is_last(self.progress.step) and not is_from_user

    def resume(self, reader: CheckpointReader) -> None:
        """Continue from a checkpoint."""
        self.checkpoints.load(reader)
        self._restore(reader)
        self._policy.restore(reader.state.spike_policy)
        self.origin = reader.directory

    def _restore(self, reader: CheckpointReader) -> None:
        """Return to the step of a loaded checkpoint. The spike policy is restored separately."""
        self.progress.restore(reader.state)
        self.callbacks.load_state_dict(reader.state.callbacks)
        self.stepper.forget_next_batch()
        snapshot = reader.rng_state(self.environment.topology.rank)
        if snapshot is not None:
            restore_rng(snapshot)
