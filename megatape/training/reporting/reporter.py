"""Reports the steps of a run to its log and its callbacks."""

from megatape.data.training.mixing.corpus_names import without_unnamed
from megatape.data.training.mixing.mixture_order import MixtureOrder
from megatape.run_environment import RunEnvironment
from megatape.training.callbacks.collection import Callbacks
from megatape.training.interrupt import Interrupt
from megatape.training.progress import Progress
from megatape.training.reporting.hardware import peak_memory
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.steps.output import StepOutput
from megatape.training.validation.result import Validation


class StepReporter:
    """Reports steps: metrics to callbacks; spikes, unplanned skips and slow ranks to the log.

    Args:
        environment: Log, lease and pace. Metrics wait while another run could have taken over the run directory.
        callbacks: Callbacks, including sinks.
        order: Order of the samples, for their number in each corpus.
        interrupt: Requests to stop. A signal on this rank ends waiting for the lease.
    """

    def __init__(
        self,
        environment: RunEnvironment,
        callbacks: Callbacks,
        order: MixtureOrder,
        interrupt: Interrupt,
    ) -> None:
        self._log = environment.log
        self._lease = environment.lease
        self._pace = environment.pace
        self._callbacks = callbacks
        self._order = order
        self._interrupt = interrupt

    def report_busy(self, busy_share: float) -> None:
        """Record the share of a step in which this rank did not wait for others, and warn about slow ranks."""
        self._pace.record_busy(busy_share)
        while self._pace.warnings:
            warning = self._pace.warnings.popleft()
            self._log.warning(warning)
            self._log.record("slow rank", warning)

    def report_anomaly(self, output: StepOutput) -> None:
        """Report a spike or an unplanned skip. Comes before the step's metrics, because a rollback may undo the step."""
        is_unplanned = not output.is_applied and not output.is_planned
        if output.anomaly or is_unplanned:
            text = f"{output.description}: {output.anomaly or output.skip_reason}"
            if not output.is_applied:
                text += "; the step is skipped"
            self._log.warning(text)
        if output.anomaly:
            self._log.record("spike", f"{output.description}: {output.anomaly}")

    def report_step(
        self,
        output: StepOutput,
        progress: Progress,
        seconds: float,
        validation: Validation | None = None,
    ) -> None:
        """Pass the step's metrics to the callbacks, once the run directory is known to be still this run's.

        Args:
            output: Step result.
            progress: Progress after the step.
            seconds: Step duration.
            validation: Evaluation after the step, or None if none was due.
        """
        metrics = StepMetrics(
            step=output.step,
            loss=output.loss,
            grad_norm=output.grad_norm,
            lr=output.learning_rate,
            tokens=progress.tokens,
            samples=progress.samples,
            seconds=seconds,
            peak_memory=peak_memory(),
            validation=validation,
            corpora=without_unnamed(self._order.counts(progress.samples)),
            skipped=output.skip_reason or "",
            digest=output.digest,
            goodput=self._log.goodput(),
        )
        with self._pace.waiting(f"the metrics of step {output.step}"):
            self._lease.wait(lambda: self._interrupt.is_requested, self._log.warning)
            self._log.step = output.step
            self._callbacks.on_step(metrics)
