"""Interface of sinks, which receive the metrics of a run. CONTRIBUTING.md says how to add one."""

from typing import TYPE_CHECKING

# Commands without a model, such as `megatape plan`, read users' files that import this module.
if TYPE_CHECKING:
    from megatape.training.callbacks.callback import RunContext
    from megatape.training.reporting.step_metrics import StepMetrics


class Sink:
    """Base class of sinks, which receive the metrics of steps on the main rank, in order.

    Args:
        run: Context of the run.

    Attributes:
        every_step: Whether the sink receives every step, or only the first, every logging.interval-th and evaluated ones.
    """

    every_step = False

    def __init__(self, run: "RunContext") -> None:
        self.run = run

    def start(self, step: int) -> None:
        """Discard records of steps after `step`, after which training continues. Called again after a rollback."""

    def write(self, metrics: "StepMetrics") -> None:
        """Write the metrics of a step. An error costs a warning and never the run, except in the sink jsonl, its record."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write the rest of what could not be written before."""

    def close(self) -> None:
        """Write the rest, and release resources. Called at every end of a run."""
        self.flush()
