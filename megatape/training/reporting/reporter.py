"""Reports the steps of a run to its log and its callbacks."""

from collections.abc import Callable

from megatape.data.training.corpus_names import without_unnamed
from megatape.data.training.mixture_order import MixtureOrder
from megatape.reliability.lease import Lease
from megatape.reliability.run_log import RunLog
from megatape.reliability.watch.pace import Pace
from megatape.training.callbacks.collection import Callbacks
from megatape.training.reporting.hardware import peak_memory
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.state import TrainState
from megatape.training.steps.output import StepOutput
from megatape.training.validation.result import Validation


class StepReporter:
    """Reports steps: metrics to the callbacks, and spikes, faults and slow ranks to the log.

    Args:
        log: Log of the run.
        callbacks: Callbacks of the run.
        lease: Lease of the run's folder. Metrics wait until the folder is known to be still this run's.
        pace: Phases of this rank, with warnings about slow ranks.
        order: Order of the run's samples.
        stop_requested: Returns whether a signal has reached this rank, which ends waiting for the lease.
    """

    def __init__(
        self,
        log: RunLog,
        callbacks: Callbacks,
        lease: Lease,
        pace: Pace,
        order: MixtureOrder,
        stop_requested: Callable[[], bool],
    ) -> None:
        self._log = log
        self._callbacks = callbacks
        self._lease = lease
        self._pace = pace
        self._order = order
        self._stop_requested = stop_requested

    def report_busy(self, busy_share: float) -> None:
        """Record how busy this rank was in a step, and report slow ranks.

        Args:
            busy_share: Share of the step's time in which this rank did not wait for another one.
        """
        self._pace.record_busy(busy_share)
        while self._pace.warnings:
            warning = self._pace.warnings.popleft()
            self._log.warning(warning)
            self._log.record("slow rank", warning)

    def report_anomaly(self, output: StepOutput) -> None:
        """Report a spike or a fault, before the step's metrics are written: a rollback may undo the step."""
        is_unplanned = not output.is_applied and not output.is_planned
        if output.anomaly or is_unplanned:
            text = f"{output.description}: {output.anomaly or output.skipped}"
            if not output.is_applied:
                text += "; the step is skipped"
            self._log.warning(text)
        if output.anomaly:
            self._log.record("spike", f"{output.description}: {output.anomaly}")

    def report_step(
        self,
        output: StepOutput,
        state: TrainState,
        seconds: float,
        validation: Validation | None = None,
    ) -> None:
        """Pass the metrics of a step to the callbacks, once the run's folder is known to be still this run's.

        Args:
            output: Result of the step.
            state: Progress after the step.
            seconds: Duration of the step.
            validation: Result of the evaluation after the step, None without one.
        """
        metrics = StepMetrics(
            step=output.step,
            loss=output.loss,
            grad_norm=output.grad_norm,
            lr=output.learning_rate,
            tokens=state.tokens,
            samples=state.samples,
            seconds=seconds,
            peak_memory=peak_memory(),
            validation=validation,
            corpora=without_unnamed(self._order.counts(state.samples)),
            skipped=output.skipped or "",
            digest=output.digest,
        )
        with self._pace.waiting(f"the metrics of step {output.step}"):
            self._lease.wait(self._stop_requested, self._log.warning)
            self._log.step = output.step
            self._callbacks.on_step(metrics)
