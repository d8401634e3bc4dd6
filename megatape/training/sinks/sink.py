"""Interface of sinks, which receive the metrics of a run. To add one, see CONTRIBUTING.md."""

from typing import TYPE_CHECKING

# Commands without a model, such as `megatape plan`, read users' files that import this module.
if TYPE_CHECKING:
    from megatape.training.callbacks.callback import RunContext
    from megatape.training.reporting.step_metrics import StepMetrics


class Sink:
    """Base class of sinks, which receive step metrics on the main rank, in order.

    Args:
        run: Run context.

    Attributes:
        every_step: Whether to receive every step, instead of the first, every logging.interval-th and evaluated ones.
    """

    every_step = False

    def __init__(self, run: "RunContext") -> None:
        self.run = run

    def start(self, step: int) -> None:
        """Discard records of steps after `step`, where training continues. Called again after a rollback."""

    def write(self, metrics: "StepMetrics") -> None:
        """Write a step's metrics. An error causes a warning; only in the sink jsonl, the run's record, it can end the run."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what could not be written before."""

    def close(self) -> None:
        """Write what is left, and release resources. Called whenever a run ends."""
        self.flush()
