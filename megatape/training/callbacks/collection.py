"""Calls all callbacks of a run, and collects their states for checkpoints."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from megatape.errors import LeaseLost, UserError
from megatape.reliability.run_log import RunLog
from megatape.training.callbacks.callback import Callback
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.utils.files.json_files import MAX_DEPTH, MAX_JSON_BYTES, check_depth, json_content

# In state.json, callback states are nested two levels deep and may take half of the size.
MAX_STATE_BYTES = MAX_JSON_BYTES // 2
MAX_STATE_DEPTH = MAX_DEPTH - 2


class Callbacks(AbstractContextManager["Callbacks"]):
    """Several callbacks as one. Context manager around training.

    Args:
        members: Registry name -> callback.
        log: Run log.
    """

    def __init__(self, members: dict[str, Callback], log: RunLog) -> None:
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
            # The run directory belongs to another run. The first error is more important.
            if error is None:
                raise

    def on_start(self, step: int) -> None:
        """See Callback."""
        self._each(lambda callback: callback.on_start(step))

    def before_step(self, step: int) -> None:
        """See Callback."""
        self._each(lambda callback: callback.before_step(step))

    def on_step(self, metrics: StepMetrics) -> None:
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
        """Return the callbacks' states by name. A state that would make the checkpoint unreadable is dropped with a warning."""
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
        if text not in self._warned:
            self._warned.add(text)
            self._log.warning(text)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the states stored in a checkpoint."""
        for name, callback in self._members.items():
            callback.load_state_dict(state.get(name, {}))

    def _each(self, call: Callable[[Callback], object]) -> None:
        for callback in self._members.values():
            call(callback)
