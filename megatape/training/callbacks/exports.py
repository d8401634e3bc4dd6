"""Exports checkpoints while training continues."""

import shutil
import subprocess
from collections import deque
from pathlib import Path

from megatape.distributed.values.exchange import on_main
from megatape.registry import UPLOAD_CHECK
from megatape.run_folder import named_step
from megatape.training.callbacks.callback import Callback, RunContext
from megatape.training.reporting.step_metrics import StepMetrics
from megatape.utils.processes.python_process import child_environment, python_command

# An export uses no GPU, and one thread, so that training keeps the others. Nobody watches the progress of its upload.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


class Exports(Callback):
    """Exports every checkpoint whose step is a multiple of export.interval, and that of the last step.

    The exports are RUN/exports/step-00000100 and so on. If export.push is set, each is uploaded. The main rank runs `megatape
    export` in a child process, for one checkpoint at a time. A failure causes a warning, and training continues. At the end of
    the run, it waits for the exports. A run that is stopped or fails ends the child process, and exports the checkpoint after
    it has been started again.

    Raises:
        UserError: The constructor checks that uploading is possible, see `check_repository`.
    """

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._interval = run.config.export.interval
        self._repository = run.config.export.push
        self._is_active = self._interval is not None and run.topology.is_main
        # Checkpoints to export, in the order of steps.
        self._waiting: deque[Path] = deque()
        self._process: ExportProcess | None = None
        # Whether the run has reached its last step.
        self._is_finished = False

        repository = self._repository
        if repository is not None:
            check_repository = UPLOAD_CHECK.load()
            on_main(lambda: check_repository(repository), run.topology)

    def on_start(self, step: int) -> None:
        if not self._is_active:
            return
        self._end_process()
        self.run.log.attempt(lambda: self._remove_undone(step), "undone exports could not be removed")
        missing = []
        for checkpoint in self.run.folder.list_checkpoints():
            is_missing = not self.run.folder.export(named_step(checkpoint)).exists()
            if named_step(checkpoint) <= step and self._is_due(checkpoint) and is_missing:
                missing.append(checkpoint)
        self._waiting = deque(sorted(missing, key=named_step))
        self._is_finished = step == self.run.config.training.steps
        self._advance()

    def on_checkpoint(self, checkpoint: Path) -> None:
        if self._is_active and self._is_due(checkpoint):
            self._waiting.append(checkpoint)
            self._advance()
        self._is_finished = self._is_last(checkpoint)

    def on_step(self, metrics: StepMetrics) -> None:
        self._advance()

    def on_error(self, error: BaseException) -> None:
        self._end_process()
        self._waiting.clear()

    def close(self) -> None:
        if not self._is_finished:
            self._end_process()
            return
        while self._process is not None:
            self.run.log.info(f"waiting for the export of step {named_step(self._process.checkpoint)}")
            self._process.wait()
            self._advance()

    def _is_due(self, checkpoint: Path) -> bool:
        if self._interval is None:
            return False
        return named_step(checkpoint) % self._interval == 0 or self._is_last(checkpoint)

    def _is_last(self, checkpoint: Path) -> bool:
        return named_step(checkpoint) == self.run.config.training.steps

    def _advance(self) -> None:
        """Report an export that has ended, and start the next one."""
        if self._process is not None and self._process.has_ended():
            self._report(self._process)
            self._process = None
        if self._process is None and self._waiting:
            self.run.log.attempt(self._start_next, "exports could not be written")

    def _start_next(self) -> None:
        checkpoint = self._waiting.popleft()
        export = self.run.folder.export(named_step(checkpoint))
        self._process = ExportProcess(checkpoint, export, self._repository)

    def _report(self, process: "ExportProcess") -> None:
        error = process.error()
        if error is None:
            text = f"exported step {named_step(process.checkpoint)} to {process.out}"
            if self._repository is not None:
                text = f"{text}, and uploaded it to {self._repository}"
            self.run.log.info(text)
        else:
            self.run.log.warning(f"{process.checkpoint} was not exported: {error}")

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _remove_undone(self, step: int) -> None:
        """Remove exports of steps that the run will make again."""
        for export in self.run.folder.list_exports():
            if named_step(export) > step:
                shutil.rmtree(export)


class ExportProcess:
    """A child process that exports a checkpoint.

    If the run is killed, the process ends by itself when its export is complete.

    Args:
        checkpoint: Checkpoint to export.
        out: Folder to write.
        repository: Repository of the hub to upload the export to, or None.
    """

    def __init__(self, checkpoint: Path, out: Path, repository: str | None) -> None:
        self.checkpoint = checkpoint
        self.out = out
        words = ["export", str(checkpoint), str(out)]
        if repository is not None:
            words += ["--push", repository]
        out.parent.mkdir(exist_ok=True)
        self._log = out.with_suffix(".log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                python_command("megatape.commands.cli.main", *words),
                env=child_environment(ENVIRONMENT),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C stops the run, which ends the process.
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def wait(self) -> None:
        """Wait for the end of the process."""
        self._process.wait()

    def end(self) -> None:
        """End the process. No incomplete export is left behind."""
        self._process.terminate()
        self._process.wait()
        self._log.unlink(missing_ok=True)

    def error(self) -> str | None:
        """Return why the export failed, or None if it succeeded. A file keeps what a failed process printed."""
        if self._process.returncode == 0:
            self._log.unlink(missing_ok=True)
            return None
        return f"its process ended with status {self._process.returncode}, see {self._log}"
