"""Makes the optimizer steps of a run."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from megatape.data.training.batches.loader import Loader
from megatape.reliability.watch.pace import Pace
from megatape.training.progress import Progress
from megatape.training.steps.output import ComputedStep, SkipReason, StepOutput
from megatape.training.steps.prefetch import Prefetcher, StepBatches
from megatape.training.steps.readable_check import check_readable
from megatape.training.steps.spike_policy import SpikePolicy
from megatape.training.steps.status import BatchCounts, Requests, StepStatus
from megatape.zero.engine import Engine
from megatape.zero.passes.pass_result import GradientSums


@dataclass(frozen=True)
class NextStep:
    """A step about to be made.

    Attributes:
        number: Step number, from 1.
        samples: Samples of the step, counted from the start of the run.
        learning_rate: Scheduled rate.
        batches: This rank's micro-batches.
        counts: Counts of the batch, summed over all ranks.
    """

    number: int
    samples: range
    learning_rate: float
    batches: StepBatches
    counts: BatchCounts


class Computation(NamedTuple):
    """A computed step, and the status exchanged before its update."""

    computed: ComputedStep
    status: StepStatus


class Stepper(AbstractContextManager["Stepper"]):
    """Makes steps: reads batches, runs the engine, and asks the spike policy. Collective, like its methods.

    All ranks sum their status once per step, including the counts of the next step's batch. The first step of a process, the
    first one after a rollback, and a step computed again need a second exchange.

    Context manager: leaving it ends the thread that prefetches batches.

    Args:
        engine: Model and optimizer under DeepSpeed.
        loader: Reader of this rank's samples.
        policy: Spike policy.
        learning_rate: Returns the scheduled rate of a step, counted from 0.
        requests: Returns this rank's requests to the training loop.
        pace: Receives this rank's phases, for the watch.

    Attributes:
        engine, loader: See Args.
        prefetcher: Prefetcher of this rank's batches.
    """

    def __init__(
        self,
        engine: Engine,
        loader: Loader,
        policy: SpikePolicy,
        learning_rate: Callable[[int], float],
        requests: Callable[[], Requests],
        pace: Pace,
    ) -> None:
        self.engine = engine
        self.loader = loader
        self.prefetcher = Prefetcher(loader, engine.device)
        self._policy = policy
        self._learning_rate = learning_rate
        self._requests = requests
        self._pace = pace
        # Ranks that read and count the same sample.
        self._num_readers = engine.mesh["sample"].size
        self._is_first_reader = engine.mesh["sample"].rank == 0
        # Counts of the next step's batch, summed over all ranks, or None before the first exchange.
        self._next_batch: BatchCounts | None = None

    def __exit__(self, *error: object) -> None:
        self.prefetcher.__exit__(*error)

    def step(self, progress: Progress) -> StepOutput:
        """Make the step after `progress`, which is not changed.

        A step is computed again before it is skipped: a spike caused by the data repeats exactly, a device fault does not.

        Raises:
            DataError: A rank cannot read its samples. Raised on all ranks.
        """
        waited_before = self.prefetcher.waited
        step = self._read_next(progress)
        self.prefetcher.start(step.samples.stop)

        computed = None
        not_computed = self._reason_not_to_compute(step)
        if not_computed is None:
            computed, status = self._compute_checked(step)
            self._policy.observe(step.number, computed.loss, computed.update)
        else:
            status = self.exchange_status(step.samples.stop)

        self._next_batch = status.next_batch
        return StepOutput(
            step.number,
            step.samples,
            step.learning_rate,
            digest=round(step.counts.digest),
            status=status,
            computed=computed,
            not_computed=not_computed,
            read_seconds=self.prefetcher.waited - waited_before,
        )

    def check_computation(self, progress: Progress) -> None:
        """Check with a micro-batch of the next step that replicas compute the same numbers. Collective.

        Raises:
            TrainingDiverged: They differ. Raised on all ranks.
        """
        if self._next_batch is None or self._next_batch.num_unreadable:
            return
        batches = self._read(progress.samples).batches
        self.engine.check_computation(batches[0].inputs_on(self.engine.device))

    def forget_next_batch(self) -> None:
        """Forget the counts of the next step's batch, because the run continues from another step."""
        self._next_batch = None

    def exchange_status(self, consumed: int, sums: GradientSums | None = None) -> StepStatus:
        """Return the status of all ranks between two steps. Collective.

        Args:
            consumed: Samples before the next step, over all ranks.
            sums: Sums over the gradients of the current step, or None if they were not computed.
        """
        batches = self._read(consumed)
        if sums is None:
            sums = GradientSums()
        # Digests are summed once for each sample, so that the sum is exact in float64 on any number of ranks.
        digest = batches.digest if self._is_first_reader else 0.0
        counts = BatchCounts(batches.error is not None, batches.num_targets, digest)
        local = StepStatus(sums, counts, self._requests())
        return local.summed(self.engine.sum_over_ranks)

    def _read_next(self, progress: Progress) -> NextStep:
        """Read the batches of the step after `progress`. Raises DataError on all ranks if one cannot."""
        number = progress.step + 1
        samples = range(progress.samples, progress.samples + self.loader.batches.after(progress.samples))
        learning_rate = self._learning_rate(progress.step)
        batches = self._read(samples.start)
        counts = self._next_batch
        if counts is None:
            counts = self.exchange_status(samples.start).next_batch
        check_readable(counts.num_unreadable, batches.error, f"the data of step {number}", self.engine.topology)
        return NextStep(number, samples, learning_rate, batches, counts)

    def _reason_not_to_compute(self, step: NextStep) -> SkipReason | None:
        """Return the reason for skipping a step without computing it, or None."""
        if self._policy.is_configured_to_skip(step.samples):
            return SkipReason.CONFIGURED
        if self._policy.is_rolled_back(step.samples):
            return SkipReason.ROLLED_BACK
        if not step.counts.num_targets:
            return SkipReason.NO_TARGETS
        return None

    def _compute_checked(self, step: NextStep) -> Computation:
        """Compute a step, and compute it again if it is about to be skipped. Returns the last result."""
        first, status = self._compute(step)
        if first.update.is_applied:
            return Computation(first, status)
        again, status = self._compute(step)
        return Computation(replace(again, anomaly=_anomaly_of_two(first, again)), status)

    def _compute(self, step: NextStep) -> Computation:
        """Run the forward and backward passes and the update of a step."""
        num_targets = step.counts.num_targets / self._num_readers
        inputs = [batch.inputs_on(self.engine.device) for batch in step.batches.batches]
        passes = self.engine.forward_backward(inputs, num_targets)

        status = self.exchange_status(step.samples.stop, passes.sums)
        sums = status.gradients
        # Tensor-parallel ranks compute the same loss.
        loss = sums.loss / self.engine.mesh["tensor"].size / num_targets

        update = self.engine.update(
            step.learning_rate,
            loss,
            sums,
            decide=partial(self._policy.decide, loss),
        )
        computed = ComputedStep(loss, update, update.decision.anomaly, passes.forward_stopwatch.seconds())
        return Computation(computed, status)

    def _read(self, consumed: int) -> StepBatches:
        """Return the batches after this number of samples. May wait for a file server or a copy."""
        with self._pace.waiting(f"the reading of samples {consumed} and after"):
            return self.prefetcher.get(consumed)


def _anomaly_of_two(first: ComputedStep, again: ComputedStep) -> str | None:
    """Return the description of a step that was computed twice, or None if it has to be skipped because it is not finite."""
    results = (again.loss, again.update.grad_norm)
    transient = f"; computed again, loss and gradient norm are {results[0]:.4g} and {results[1]:.4g}: a transient fault"
    nonfinite_reason = first.update.nonfinite_reason
    if nonfinite_reason is not None:
        if again.update.nonfinite_reason is not None:
            return None
        return nonfinite_reason + transient
    anomaly = first.update.decision.anomaly
    if anomaly is not None and results != (first.loss, first.update.grad_norm):
        return anomaly + transient
    return anomaly
