"""Callbacks, which follow a run, and sinks, which receive its metrics. CONTRIBUTING.md says how to add one."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from megatape.errors import LeaseLost, UserError
from megatape.utils.files import MAX_DEPTH, MAX_JSON_BYTES, check_depth, json_content

if TYPE_CHECKING:  # a user's file that imports this one is read by commands that need no model, such as `megatape plan`
    from megatape.config import Config
    from megatape.distributed.topology import Topology
    from megatape.reliability.run_log import RunLog
    from megatape.run_folder import RunFolder
    from megatape.training.evaluation import Validation
    from megatape.training.speed import Speed
    from megatape.training.step import StepMetrics
    from megatape.zero.engine import Engine


# In a checkpoint's state.json, the states of callbacks are nested two levels deep, and half of the size is for everything else.
MAX_STATE_BYTES = MAX_JSON_BYTES // 2
MAX_STATE_DEPTH = MAX_DEPTH - 2


@dataclass(frozen=True)
class RunContext:
    """What callbacks and sinks may use of a run.

    Attributes:
        config: resolved configuration.
        folder: the run's folder.
        topology: all ranks, and this one.
        engine: the model under DeepSpeed.
        log: prints lines and keeps events; its `attempt` makes a failed write cost a warning instead of the run.
        speed: rates of all ranks together, of which the metrics callback counts the steps.
        unigram_entropy: of the training text, nats: a model above this loss uses no context.
        profiled_steps: steps to trace, 0 for none.
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
    """Follows a run. Every rank calls each method at the same point; all of them may be left out.

    An exception ends the run. Writes into the run's folder go through `run.log.attempt`.
    """

    def __init__(self, run: RunContext) -> None:
        self.run = run

    def on_start(self, step: int) -> None:
        """Training continues after `step`, before the first step of this process and after a rollback."""

    def before_step(self, step: int) -> None:
        """This step, counted from 1, begins."""

    def on_step(self, metrics: "StepMetrics") -> None:
        """A step was made, and evaluated if it was due. A step that a rollback undoes is not seen here."""

    def on_evaluate(self, step: int, validation: "Validation") -> None:
        """The step was evaluated, before on_step."""

    def on_checkpoint(self, checkpoint: Path) -> None:
        """A checkpoint was written. Its steps are those of its name: in the background later ones have been made."""

    def on_error(self, error: BaseException) -> None:
        """An exception ends the run."""

    def flush(self) -> bool:
        """Write what could not be written before: a checkpoint is about to be saved.

        Returns whether the checkpoint has all that must not be older than it.
        """
        return True

    def close(self) -> None:
        """The run ends, well or not."""

    def state_dict(self) -> dict[str, Any]:
        """Return JSON that checkpoints keep for this callback; {} for nothing. All callbacks share MAX_STATE_BYTES."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what a checkpoint kept, before on_start; {} if it kept nothing."""


class Callbacks(AbstractContextManager["Callbacks"]):
    """Several callbacks as one, each by the name of its registry entry. Context manager around training."""

    def __init__(self, members: dict[str, Callback], log: "RunLog") -> None:
        self._members = members
        self._log = log
        self._warned: set[str] = set()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            with ExitStack() as closing:
                for callback in reversed(self._members.values()):
                    closing.callback(callback.close)  # of each, whatever another one raises
                if error is not None:
                    self._log.record("failed", str(error) or type(error).__name__)
                    self._each(lambda callback: callback.on_error(error))
        except LeaseLost:  # then the folder is another run's
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
        flushed = [callback.flush() for callback in self._members.values()]  # each, whatever another one says
        return all(flushed)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each callback that has any.

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
        """Continue from what a checkpoint kept."""
        for name, callback in self._members.items():
            callback.load_state_dict(state.get(name, {}))

    def _each(self, call: Callable[[Callback], object]) -> None:
        for callback in self._members.values():
            call(callback)


class Sink:
    """Receives the metrics of steps on the main rank, in order. `close` is called at every end.

    Attributes:
        every_step: whether it takes every step, or those of logging.interval, the first, and those with a validation.
    """

    every_step = False

    def __init__(self, run: RunContext) -> None:
        self.run = run

    def start(self, step: int) -> None:
        """Training continues after `step`: what was written of later steps is out of date. Called again after a rollback."""

    def write(self, metrics: "StepMetrics") -> None:
        """Take the metrics of a step. An error costs a warning and never the run, except in the sink jsonl, its record."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what could not be written before."""

    def close(self) -> None:
        """Take no more."""
        self.flush()
