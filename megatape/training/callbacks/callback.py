"""Interface of callbacks, which follow a run. To add one, see CONTRIBUTING.md."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """Context passed to callbacks and sinks.

    Attributes:
        config: Resolved configuration.
        folder: Run directory.
        topology: All ranks.
        engine: Model and optimizer under DeepSpeed.
        log: Prints lines and records events. Inside its `attempt`, a failed write causes a warning instead of ending the run.
        speed: Rates of all ranks together. The metrics callback counts the steps.
        unigram_entropy: Unigram entropy of the training text, nats. A model above this loss uses no context.
        profiled_steps: Number of steps to trace.
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

    Hooks of the model's modules are not called in steps that replay CUDA graphs (training.cuda_graphs): register them inside
    `run.engine.replays.suspended()`. An exception ends the run. Write into the run directory through `run.log.attempt`.

    Args:
        run: Run context.
    """

    def __init__(self, run: RunContext) -> None:
        self.run = run

    def on_start(self, step: int) -> None:
        """Handle starting after `step`: before the first step of this process, and after a rollback."""

    def before_step(self, step: int) -> None:
        """Handle the start of a step, counted from 1."""

    def on_step(self, metrics: "StepMetrics") -> None:
        """Handle a completed step, after its evaluation if one was due. Not called for steps undone by a rollback."""

    def on_evaluate(self, step: int, validation: "Validation") -> None:
        """Handle an evaluation after a step. Called before on_step."""

    def on_checkpoint(self, checkpoint: Path) -> None:
        """Handle a new checkpoint. Its step is in its name: while saving in the background, training has continued."""

    def on_error(self, error: BaseException) -> None:
        """Handle an exception ending the run."""

    def flush(self) -> bool:
        """Write what could not be written before, because a checkpoint is about to be saved.

        Returns:
            Whether everything is written that must not be older than the checkpoint.
        """
        return True

    def close(self) -> None:
        """Release resources at the end of a run, even a failed one."""

    def state_dict(self) -> dict[str, Any]:
        """Return a JSON object to store in checkpoints, {} for none. All callbacks share a size limit (collection.py)."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the object stored in a checkpoint, or {}. Called before on_start."""
