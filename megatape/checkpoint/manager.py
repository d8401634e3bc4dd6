"""Saves, finds and removes the checkpoints of a run."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from megatape.checkpoint.environment import RunEnvironment
from megatape.checkpoint.reader import CheckpointReader, rng_snapshot
from megatape.checkpoint.resume import first_valid, move_aside, open_checkpoint
from megatape.checkpoint.tensors import StoredWeights
from megatape.checkpoint.writer import COLLECTIVE_ERRORS, Background, CheckpointContents, prune, write_checkpoint
from megatape.config import CheckpointConfig
from megatape.errors import NotSaved, UserError
from megatape.reliability.pace import PhaseKind
from megatape.run_folder import CORRUPTED, ROLLED_BACK, named_step
from megatape.utils.files import retry_transient_errors
from megatape.zero.engine import Engine
from megatape.zero.state import Snapshot, ZeroState

FAILED_SAVES = 3  # in a row
WHOLE, COPY, REST = range(3)  # what training waits for, which takes as long as the like before


class SaveListener(Protocol):
    """What follows the saves of a run."""

    def flush(self) -> bool:
        """Write what could not be written before. Returns whether the metrics of all steps are written."""

    def on_checkpoint(self, checkpoint: Path) -> None:
        """A checkpoint was written."""


class CheckpointManager(AbstractContextManager["CheckpointManager"]):
    """Owns the checkpoints of a run: the save in flight, failures, and which of them are kept. Collective, like its methods.

    A checkpoint that cannot be written costs a warning. After FAILED_SAVES in a row, and at the end, it is tried again for
    some seconds, as long as schedulers wait after SIGTERM; then it costs the run.

    Context manager around training: however it ends, a save in flight is finished, unless ranks are gone.

    Attributes:
        saved_step: step of the last checkpoint that was written, or that the run continues from.
        base: frozen weights that checkpoints leave out, None for none.

    Args:
        environment: of the run.
        config: how many are kept, and whether they are written in the background.
        engine: whose weights and optimizer state are saved.
        state_dict: the rest of the present state, a JSON object with `step` and `updates`.
        tokenizer: content of the tokenizer's files, by name.
        protected: picks checkpoints, by step, that are kept beside the newest ones at a step.
        listener: follows the saves.
    """

    def __init__(
        self,
        environment: RunEnvironment,
        config: CheckpointConfig,
        engine: Engine,
        state_dict: Callable[[], dict[str, Any]],
        tokenizer: Mapping[str, bytes],
        protected: Callable[[Iterable[int], int], Collection[int]],
        listener: SaveListener,
    ) -> None:
        self._environment = environment
        self._config = config
        self._engine = engine
        self._state_dict = state_dict
        self._tokenizer = tokenizer
        self._protected = protected
        self._listener = listener
        self._background = Background() if config.background else None
        self.base: StoredWeights | None = None
        self.saved_step = 0
        self._written_step: int | None = None  # of the last checkpoint that this process wrote and did not undo
        self._failures = 0  # in a row
        self._begun = 0  # step of the save in flight
        self._waited = 0.0  # seconds that training waited for it so far

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, COLLECTIVE_ERRORS):
            try:
                self.wait()
            except COLLECTIVE_ERRORS as failure:
                self._environment.log.warning(str(failure))

    def save(self) -> bool:
        """Save the present step, in the background if so configured.

        Returns whether it was tried. It is postponed while heartbeats of the run's lease fail, and, until the next one is due,
        while metrics cannot be written: a run that is killed then would resume without those of the checkpoint's steps.
        Raises as `save_last`.
        """
        self.wait()
        environment = self._environment
        step = self._step
        if self._written_step == step:  # by the last attempts after a save that was in flight
            return True
        if environment.on_main(lambda: environment.lease.is_late):
            if step % self._config.interval == 0:
                environment.log.warning(f"{environment.folder.directory} does not answer: the save after step {step} waits")
            return False
        if not environment.on_main(self._listener.flush) and step - self.saved_step < 2 * self._config.interval:
            if step % self._config.interval == 0:
                environment.log.warning(f"the save after step {step} waits until its metrics can be written")
            return False
        if self._background is None:
            self._enter(step, WHOLE)
            self._conclude(self._save_now)
            return True
        self._enter(step, COPY)
        started = time.perf_counter()
        self._engine.check_replicas()
        self._background.snapshot.take(self._engine.state, self.base.tensors if self.base else ())
        self._background.start(self._in_background(step, self._writing(self._background.snapshot)))
        self._begun = step
        self._waited = time.perf_counter() - started
        return True

    def save_last(self) -> Path:
        """Save the present step, which may be the end of the run, wait for it, and return its folder.

        Raises:
            NotSaved: it could not be written.
            TrainingDiverged: replicas differ, or a weight is not finite.
        """
        self.wait()
        environment = self._environment
        step = self._step

        def attempt() -> Path:
            environment.log.flush()
            self._listener.flush()
            return self._save_now()

        if self._written_step != step:
            self._enter(step, WHOLE)
            try:
                checkpoint = self._report(lambda: retry_transient_errors(attempt, lambda _: True, environment.log.warning))
            except OSError as error:
                steps = f"steps {self.saved_step + 1} to {step} are not saved"
                raise NotSaved(f"{error}; {steps}; once a checkpoint can be written, --resume auto makes them again") from error
            self._listener.on_checkpoint(checkpoint)  # outside the try block: errors of the listener are not failed saves
        return environment.folder.checkpoint(step)

    @property
    def has_ended(self) -> bool:
        """Whether this rank's share of the save in flight is written.

        Raises an error that the other ranks do not share, and that would leave them waiting.
        """
        return self._background is not None and self._background.has_ended()

    def poll(self, num_ended: float) -> None:
        """Finish the save in flight without waiting, if all ranks' shares are written.

        Args:
            num_ended: ranks whose `has_ended` is True.
        """
        # None is in flight if a rollback has waited for it since the ranks counted.
        if self._background is not None and self._background.in_flight and num_ended == self._environment.topology.world_size:
            self._conclude(self._background.finish)

    def wait(self) -> None:
        """Wait for the save in flight, if there is one. Raises as `save_last`."""
        if self._background is not None and self._background.in_flight:
            self._enter(self._begun, REST)
            self._conclude(self._background.finish)

    def load(self, source: str, check: Callable[[CheckpointReader], None]) -> CheckpointReader | None:
        """The checkpoint to continue from, None for a run that has none. Newer ones that are corrupted are moved aside.

        Args:
            source: "auto" for the newest valid checkpoint of the run, or the folder of one.
            check: raises UserError on all ranks if the run must not continue from a checkpoint.

        Raises:
            UserError, FileNotFoundError: there is no valid one, or newer ones than `source`.
            OSError: one cannot be read.
        """
        environment = self._environment
        if source == "auto":
            # What the main rank sees: ranks that looked for themselves could see different ones through a network file system.
            names = environment.on_main(lambda: [path.name for path in environment.folder.list_checkpoints()])
            reader, corrupted = first_valid(names, environment)
            if corrupted and reader is None:  # starting from step 0 would overwrite what can still be saved
                raise UserError(
                    f"{environment.folder.checkpoints}: none of the {len(corrupted)} checkpoints is valid (above); repair or "
                    "remove them, or choose another run.directory"
                )
        else:
            reader = open_checkpoint(Path(source), environment)
            corrupted = []
            if newer := self._newer(reader):
                raise UserError(
                    f"run.directory {environment.folder.directory} holds checkpoints newer than {reader.directory} (up to "
                    f"{newer[0].name}), which resuming there would mix with its own: choose another run.directory, or remove "
                    "them"
                )
        if reader is not None:
            check(reader)
            environment.on_main(lambda: move_aside(corrupted, CORRUPTED))
        return reader

    def roll_back(self, stable: Callable[[Iterable[int]], list[int]]) -> CheckpointReader | None:
        """The newest valid checkpoint among those that `stable` picks; None without one.

        Newer ones are moved aside: a resume that took one would continue what was undone. So are corrupted ones.

        Args:
            stable: picks steps, newest first, from the steps of all checkpoints.
        """
        environment = self._environment

        def names() -> list[str]:
            found = {named_step(path): path.name for path in environment.folder.list_checkpoints()}
            return [found[step] for step in stable(found)]

        reader, corrupted = first_valid(environment.on_main(names), environment)

        def abandon() -> None:
            move_aside(corrupted, CORRUPTED)
            if reader is not None:
                move_aside(self._newer(reader), ROLLED_BACK)
                environment.folder.mark_latest(reader.directory)

        environment.on_main(abandon)
        return reader

    def continue_from(self, reader: CheckpointReader) -> None:
        """Count the checkpoint as saved, and later ones of this process as undone."""
        self.saved_step = reader.step
        self._written_step = None
        self.base = reader.base

    def _newer(self, reader: CheckpointReader) -> list[Path]:
        return [path for path in self._environment.folder.list_checkpoints() if named_step(path) > reader.step]

    @property
    def _step(self) -> int:
        """The present step."""
        return int(self._state_dict()["step"])

    def _save_now(self) -> Path:
        self._engine.check_replicas()
        return self._writing(self._engine.state)()

    def _writing(self, source: ZeroState | Snapshot) -> Callable[[], Path]:
        """Writes a checkpoint of the present step when it is called, also after later steps."""
        environment = self._environment
        environment.log.sync_metrics()
        contents = CheckpointContents(self._state_dict(), source, rng_snapshot(), self._tokenizer, self.base)

        def write() -> Path:
            checkpoint = write_checkpoint(environment, contents)
            if environment.topology.is_main:
                try:  # the checkpoint is complete, whatever becomes of these
                    environment.folder.mark_latest(checkpoint)
                    prune(environment, checkpoint, self._config.keep, self._protected)
                except OSError as error:
                    environment.log.warning(f"after writing {checkpoint}: {error}")
            return checkpoint

        return write

    def _in_background(self, step: int, write: Callable[[], Path]) -> Callable[[], Path]:
        """Wrap `write`, so that the watch over the ranks knows about a save in the background."""
        pace = self._environment.pace

        def work() -> Path:
            with pace.in_background(PhaseKind.SAVE, f"the save after step {step} in the background", WHOLE):
                return write()

        return work

    def _enter(self, step: int, part: int) -> None:
        self._environment.pace.enter(PhaseKind.SAVE, f"the save after step {step}", part)

    def _conclude(self, save: Callable[[], Path]) -> None:
        try:
            checkpoint = self._report(save)
        except OSError as error:
            self._failures += 1
            log = self._environment.log
            is_last = self._failures == FAILED_SAVES
            log.record("save failed", str(error))
            then = "the last attempts are now" if is_last else f"the next is after {self._config.interval} steps"
            log.warning(f"{error} (failure {self._failures} in a row, {FAILED_SAVES} end the run); {then}")
            if is_last:
                self.save_last()
        else:
            self._listener.on_checkpoint(checkpoint)  # outside the try block: errors of the listener are not failed saves

    def _report(self, save: Callable[[], Path]) -> Path:
        """Run `save`, report the checkpoint, and return its folder."""
        started = time.perf_counter()
        try:
            checkpoint = save()
        finally:
            waited = self._waited + time.perf_counter() - started
            self._waited = 0.0
        self._failures = 0
        self.saved_step = self._written_step = named_step(checkpoint)
        self._environment.log.say(f"checkpoint {checkpoint}; training waited {waited:.3f} s")
        self._environment.log.record("checkpoint", f"{checkpoint.name}, training waited {waited:.3f} s")
        return checkpoint
