"""Makes the optimizer steps of a run."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from megatape.data.training.loader import Loader
from megatape.reliability.watch.pace import Pace
from megatape.training.inputs import on_device
from megatape.training.state import TrainState
from megatape.training.steps.output import ComputedStep, SkipReason, StepOutput
from megatape.training.steps.prefetch import Prefetcher, StepBatches
from megatape.training.steps.spike_policy import SpikePolicy
from megatape.training.steps.status import BatchCounts, Requests, StepStatus
from megatape.training.steps.unreadable import check_readable
from megatape.zero.engine import Engine
from megatape.zero.gradient_sums import GradientSums
from megatape.zero.update import Take


class Stepper(AbstractContextManager["Stepper"]):
    """Makes steps: reads their batches, runs the engine, and asks the spike policy. Collective, like its methods.

    Between two steps all ranks sum their status, which includes the counts of the next step's batch. So a step has one
    exchange. The first one of a process, the first one after a rollback, and a step that is computed again have two.

    Context manager: leaving it ends the thread that prefetches batches.

    Args:
        engine: Engine of the run.
        loader: Reader of this rank's samples.
        policy: Spike policy of the run.
        learning_rate: Returns the scheduled rate of a step, counted from 0.
        requests: Returns this rank's requests to the training loop.
        pace: Receives the phases of this rank, for the watch over the ranks.

    Attributes:
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
        self.prefetcher = Prefetcher(loader, engine.device)
        self._engine = engine
        self._loader = loader
        self._policy = policy
        self._learning_rate = learning_rate
        self._requests = requests
        self._pace = pace
        # Number of ranks that read and count the same sample.
        self._num_readers = engine.mesh["sample"].size
        # Counts of the next step's batch, summed over all ranks; None before the first exchange.
        self._next_batch: BatchCounts | None = None

    def __exit__(self, *error: object) -> None:
        self.prefetcher.__exit__(*error)

    def step(self, state: TrainState) -> StepOutput:
        """Make the step after `state`, which is not changed.

        Before skipping a spike, the step is computed again. A spike caused by the data repeats exactly; a device fault does
        not.

        Raises:
            DataError: A rank cannot read its samples. Raised on all ranks.
        """
        step = state.step + 1
        samples = range(state.samples, state.samples + self._loader.batches.after(state.samples))
        learning_rate = self._learning_rate(state.step)
        batches = self._read(samples.start)
        counts = self._next_batch
        if counts is None:
            counts = self.exchange_status(samples.start).next_batch
        check_readable(counts.num_unreadable, batches.error, f"the data of step {step}", self._engine.topology)
        self.prefetcher.start(samples.stop)

        computed = None
        skip_reason = self._skip_reason(samples, counts)
        if skip_reason is None:
            num_targets = counts.num_targets / self._num_readers
            computed, status = self._compute_checked(samples, batches, num_targets, learning_rate)
            self._policy.observe(step, computed.loss, computed.update)
        else:
            status = self.exchange_status(samples.stop)
        self._next_batch = status.next_batch
        digest = round(counts.digest / self._num_readers)
        return StepOutput(step, samples, learning_rate, digest, status, computed, skip_reason)

    def forget_next_batch(self) -> None:
        """Forget the counts of the next step's batch, because the run continues from another step."""
        self._next_batch = None

    def exchange_status(self, consumed: int, sums: GradientSums | None = None) -> StepStatus:
        """Return the status of all ranks between two steps. Collective.

        Args:
            consumed: Number of samples before the step, over all ranks.
            sums: Sums over the gradients of the step before it, None if they were not computed.
        """
        batches = self._read(consumed)
        if sums is None:
            sums = GradientSums()
        counts = BatchCounts(bool(batches.error), batches.num_targets, batches.digest)
        local = StepStatus(sums, counts, self._requests())
        return local.summed(self._engine.sum_over_ranks)

    def _skip_reason(self, samples: range, counts: BatchCounts) -> SkipReason | None:
        """Return the reason for skipping a step without computing it, or None.

        Args:
            samples: Samples of the step.
            counts: Counts of its batch, summed over all ranks.
        """
        if self._policy.skips(samples):
            return SkipReason.PLANNED
        if not counts.num_targets:
            return SkipReason.NO_TARGETS
        return None

    def _compute_checked(
        self, samples: range, batches: StepBatches, num_targets: float, learning_rate: float
    ) -> tuple[ComputedStep, StepStatus]:
        """Compute a step, and again if it is about to be skipped for a spike. Returns the last result and status."""
        first, status = self._compute(samples, batches, num_targets, learning_rate)
        if first.update.fault is not None or isinstance(first.update.decision, Take):
            return first, status
        again, status = self._compute(samples, batches, num_targets, learning_rate)
        anomaly = first.update.decision.anomaly
        grad_norm = again.update.grad_norm
        if (again.loss, grad_norm) != (first.loss, first.update.grad_norm):
            anomaly += f"; computed again, they are {again.loss:.4g} and {grad_norm:.4g}: a transient fault"
        return replace(again, anomaly=anomaly), status

    def _compute(
        self, samples: range, batches: StepBatches, num_targets: float, learning_rate: float
    ) -> tuple[ComputedStep, StepStatus]:
        """Run the forward and backward passes and the update of a step. Returns the result, and the status after the step."""
        inputs = [on_device(batch, self._engine.device) for batch in batches.batches]
        passes = self._engine.forward_backward(inputs, num_targets)
        status = self.exchange_status(samples.stop, passes.sums)
        sums = status.gradients
        loss = sums.loss / self._engine.mesh["tensor"].size / num_targets
        update = self._engine.update(
            learning_rate,
            loss,
            sums,
            decide=partial(self._policy.decide, loss),
        )
        return ComputedStep(loss, update, update.decision.anomaly, passes.forward.seconds()), status

    def _read(self, consumed: int) -> StepBatches:
        """Return the batches of a step. May wait for a file server or a copy.

        Args:
            consumed: Number of samples before the step, over all ranks.
        """
        with self._pace.waiting(f"the reading of samples {consumed} and after"):
            return self.prefetcher.get(consumed)
