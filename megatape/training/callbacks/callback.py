"""Interfaces of callbacks, which follow a run, and of sinks, which receive its metrics. CONTRIBUTING.md says how to add one."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from megatape.errors import LeaseLost, UserError
from megatape.utils.files import MAX_DEPTH, MAX_JSON_BYTES, check_depth, json_content

# Commands without a model, such as `megatape plan`, read users' files that import this module.
if TYPE_CHECKING:
    from megatape.config import Config
    from megatape.distributed.topology import Topology
    from megatape.reliability.run_log import RunLog
    from megatape.run_folder import RunFolder
    from megatape.training.evaluation import Validation
    from megatape.training.speed import Speed
    from megatape.training.step import StepMetrics
    from megatape.zero.engine import Engine


# In a checkpoint's state.json, the states of callbacks are nested two levels deep and may take half of the size.
MAX_STATE_BYTES = MAX_JSON_BYTES // 2
MAX_STATE_DEPTH = MAX_DEPTH - 2


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
        """Return a JSON object for checkpoints to store, {} for nothing. All callbacks together have MAX_STATE_BYTES."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the object in a checkpoint, {} if it has none. Called before on_start."""


class Callbacks(AbstractContextManager["Callbacks"]):
    """Several callbacks as one. Context manager around training.

    Args:
        members: Callbacks, by name of their registry entry.
        log: Log of the run.
    """

    def __init__(self, members: dict[str, Callback], log: "RunLog") -> None:
        self._members = members
        self._log = log
        self._warned: set[str] = set()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            with ExitStack() as closing:
                # Close every callback, even if another one raises.
                for callback in reversed(self._members.values()):
                    closing.callback(callback.close)
                if error is not None:
                    self._log.record("failed", str(error) or type(error).__name__)
                    self._each(lambda callback: callback.on_error(error))
        except LeaseLost:
            # The folder belongs to another run. The first error is more important.
            if error is None:
                raise

    def on_start(self, step: int) -> None:
        """See Callback."""
        self._each(lambda callback: callback.on_start(step))

    def before_step(self, step: int) -> None:
        """See Callback."""
        self._each(lambda callback: callback.before_step(step))

    def on_step(self, metrics: "StepMetrics") -> None:
        """See Callback."""
        if metrics.validation is not None:
            validation = metrics.validation
            self._each(lambda callback: callback.on_evaluate(metrics.step, validation))
        self._each(lambda callback: callback.on_step(metrics))

    def on_checkpoint(self, checkpoint: Path) -> None:
        """See Callback."""
        self._each(lambda callback: callback.on_checkpoint(checkpoint))

    def flush(self) -> bool:
        """See Callback."""
        # Flush every callback, even if another one has not written everything.
        flushed = [callback.flush() for callback in self._members.values()]
        return all(flushed)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each callback that has one, by name.

        A state that could not be read again is dropped with a warning, because it would make the checkpoint unreadable.
        """
        states = {}
        room = MAX_STATE_BYTES
        for name, callback in self._members.items():
            state = callback.state_dict()
            if not state:
                continue
            try:
                check_depth(state, MAX_STATE_DEPTH)
                room -= len(json_content(state, "it", indent=1, max_bytes=room))
            except UserError as error:
                self._warn(
                    f"checkpoints lack the state of the callback {name} ({error}): on resume it gets {{}}; keep less, or write "
                    "it to a file of its own"
                )
                continue
            states[name] = state
        return states

    def _warn(self, text: str) -> None:
        """Print a warning, but only the first time."""
        if text not in self._warned:
            self._warned.add(text)
            self._log.warning(text)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the states in a checkpoint, by name."""
        for name, callback in self._members.items():
            callback.load_state_dict(state.get(name, {}))

    def _each(self, call: Callable[[Callback], object]) -> None:
        """Call each callback."""
        for callback in self._members.values():
            call(callback)


class Sink:
    """Base class of sinks, which receive the metrics of steps on the main rank, in order.

    Args:
        run: Context of the run.

    Attributes:
        every_step: Whether the sink receives every step, or only the first, every logging.interval-th and evaluated ones.
    """

    every_step = False

    def __init__(self, run: RunContext) -> None:
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
