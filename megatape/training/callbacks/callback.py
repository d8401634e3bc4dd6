"""Interface of callbacks, which follow a run. CONTRIBUTING.md says how to add one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatape.moved_modules import old_names

# Commands without a model, such as `megatape plan`, read users' files that import this module.
if TYPE_CHECKING:
    from megatape.config import Config
    from megatape.distributed.topology import Topology
    from megatape.reliability.run_log import RunLog
    from megatape.run_folder import RunFolder
    from megatape.training.reporting.speed import Speed
    from megatape.training.reporting.step_metrics import StepMetrics
    from megatape.training.validation.result import Validation
    from megatape.zero.engine import Engine


@dataclass(frozen=True)
class RunContext:
    """Context that a run passes to its callbacks and sinks.

    Attributes:
        config: Resolved configuration of the run.
        folder: Folder of the run.
        topology: All ranks, and this one.
        engine: Model under DeepSpeed.
        log: Log of the run, which prints lines and records events. With its `attempt`, a failed write costs a warning and not
            the run.
        speed: Rates of all ranks together. The metrics callback counts its steps.
        unigram_entropy: Unigram entropy of the training text, nats. A model above this loss uses no context.
        profiled_steps: Number of steps to trace, 0 for none.
    """

    config: "Config"
    folder: "RunFolder"
    topology: "Topology"
    engine: "Engine"
    log: "RunLog"
    speed: "Speed"
    unigram_entropy: float
    profiled_steps: int = 0


class Callback:
    """Base class of callbacks. Every rank calls each method at the same point, and all methods are optional.

    An exception ends the run. Writes into the run's folder go through `run.log.attempt`.

    Args:
        run: Context of the run.
    """

    def __init__(self, run: RunContext) -> None:
        self.run = run

    def on_start(self, step: int) -> None:
        """Handle the start of training after `step`, before the first step of this process and after a rollback."""

    def before_step(self, step: int) -> None:
        """Handle the beginning of a step, counted from 1."""

    def on_step(self, metrics: "StepMetrics") -> None:
        """Handle a completed step, after its evaluation if one was due. Steps undone by a rollback are not passed."""

    def on_evaluate(self, step: int, validation: "Validation") -> None:
        """Handle the evaluation of a step. Called before on_step."""

    def on_checkpoint(self, checkpoint: Path) -> None:
        """Handle a written checkpoint. Its step is in its name: in the background, the run has gone on since."""

    def on_error(self, error: BaseException) -> None:
        """Handle an exception that ends the run."""

    def flush(self) -> bool:
        """Write the rest of what could not be written before, because a checkpoint is about to be saved.

        Returns:
            Whether everything is written that must not be older than the checkpoint.
        """
        return True

    def close(self) -> None:
        """Release resources at the end of a run, even a failed one."""

    def state_dict(self) -> dict[str, Any]:
        """Return a JSON object for checkpoints to store, {} for nothing. All callbacks share a limit (collection.py)."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the object in a checkpoint, {} if it has none. Called before on_start."""


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
