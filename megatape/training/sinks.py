"""Where the metrics of a run go: metrics.jsonl, TensorBoard, the console."""

import errno
import io
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from torch.utils.tensorboard import SummaryWriter

from megatape.files import write_atomically
from megatape.run_folder import RunFolder, read_metrics
from megatape.training.output import say
from megatape.training.position_view import PositionView
from megatape.training.speed import Speed
from megatape.training.step import StepMetrics

RETRY = 600.0  # seconds without TensorBoard after it could not be written


class Sink(Protocol):
    """Takes the metrics of steps, in order. every_step: of all of them, not only of those that logging.interval picks."""

    every_step: bool = False

    def write(self, metrics: StepMetrics) -> None: ...

    def flush(self) -> None:
        """Write what could not be written before."""
        return

    def close(self) -> None:
        self.flush()


class JsonLines(Sink):
    """One object per step, StepMetrics.record. Lines that cannot be written, as on a full disk, are written with a later one: a
    step that is missing would look like samples that the run has not seen."""

    every_step = True

    def __init__(self, path: Path, start_step: int) -> None:
        """Continue the file after `start_step`, with the first step that is written."""
        self._path, self._start_step = path, start_step
        self._begun = False
        self._file: io.FileIO | None = None
        self._rest = b""  # what is not written yet, from where the disk was full

    def write(self, metrics: StepMetrics) -> None:
        self._rest += json.dumps(metrics.record()).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        if not self._rest:
            return
        if self._file is None:
            self._file = self._open()
        try:
            written = self._file.write(self._rest)
        except OSError:  # after some errors of a file server this open file never works again
            self._close_file()
            raise
        self._rest = self._rest[written:]
        if self._rest:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _open(self) -> io.FileIO:
        """The file. The first time, remove what a run wrote after its checkpoint, which will be written again, and lines that
        are not metrics."""
        if not self._begun:
            kept = [line for step, line in read_metrics(self._path).items() if step <= self._start_step]
            content = "".join(f"{line}\n" for line in kept).encode()
            if not _holds(self._path, content):
                write_atomically(self._path, content)
            self._begun = True
        return io.FileIO(self._path, "a")  # unbuffered: it is known how much of a line a full disk has taken


def _holds(path: Path, content: bytes) -> bool:
    """Whether this is the content of a file, of which no more is read; a file that does not exist is empty."""
    try:
        with path.open("rb") as file:
            return file.read(len(content) + 1) == content
    except FileNotFoundError:
        return not content


class PositionViews(Sink):
    """A file for each evaluation, of encodings whose blocks change a position tensor."""

    def __init__(self, folder: RunFolder, start_step: int) -> None:
        """Continue after `start_step`, with the first step that is written."""
        self._folder, self._start_step = folder, start_step
        self._begun = False
        self._rest: dict[int, PositionView] = {}  # by step, what is not written yet

    def write(self, metrics: StepMetrics) -> None:
        if metrics.validation and metrics.validation.positions:
            self._rest[metrics.step] = metrics.validation.positions
        if not self._begun:  # remove what a run wrote after its checkpoint
            for step, path in self._folder.list_position_views().items():
                if step > self._start_step:
                    path.unlink()
            self._begun = True
        self.flush()

    def flush(self) -> None:
        while self._begun and self._rest:
            step = min(self._rest)
            self._rest[step].save(self._folder, step)
            del self._rest[step]


class TensorBoard(Sink):
    """Losses, gradient norm, learning rate, speed, memory, and the position view: norms, dot products, gains."""

    def __init__(self, folder: Path, speed: Speed) -> None:
        self._folder, self._speed = folder, speed
        self._writer: SummaryWriter | None = None
        self._failed = -RETRY

    def write(self, metrics: StepMetrics) -> None:
        if time.monotonic() - self._failed < RETRY:
            return
        try:
            if self._writer is None:
                self._writer = SummaryWriter(str(self._folder), purge_step=metrics.step)
            for name, value in self._values(metrics).items():
                self._writer.add_scalar(name, value, metrics.step)
            if metrics.validation and metrics.validation.positions:
                _add_positions(self._writer, metrics.validation.positions, metrics.step)
        except OSError:
            # A writer whose thread could not write never does again. A new one begins a new file.
            self._failed = time.monotonic()
            with suppress(OSError):
                self.close()
            self._writer = None
            raise

    def close(self) -> None:
        if self._writer:
            self._writer.close()

    def _values(self, metrics: StepMetrics) -> dict[str, float]:
        values = {
            "loss/train": metrics.loss,
            "gradient norm": metrics.grad_norm,
            "learning rate": metrics.lr,
            "speed/tokens per second": self._speed.tokens_per_second(metrics.seconds),
            "memory/peak GiB": metrics.peak_memory / 2**30,
        }
        if (utilization := self._speed.utilization(metrics.seconds)) is not None:
            values["speed/MFU"] = utilization
        if metrics.validation:
            values["loss/validation"] = metrics.validation.loss
            values |= {f"loss/validation of {name}": loss for name, loss in metrics.validation.corpora.items()}
        return values


def _add_positions(writer: SummaryWriter, view: PositionView, step: int) -> None:
    for layer, norm in enumerate(view.norms, 1):
        writer.add_scalar(f"position tensor/norm in layer {layer}", norm, step)
    for layer, gains in enumerate(view.gains, 1):
        if gains.size:
            writer.add_histogram(f"position tensor/gains of layer {layer}", gains, step)
    writer.add_image("position tensor/dot products by layer", view.picture(), step, dataformats="HWC")


class Console(Sink):
    """One line: progress, loss, gradient norm, mean speed since this process started, and the time that is left."""

    def __init__(self, steps: int, unigram_entropy: float, speed: Speed) -> None:
        self._steps, self._unigram_entropy, self._speed = steps, unigram_entropy, speed

    def write(self, metrics: StepMetrics) -> None:
        step, steps, mean = metrics.step, self._steps, self._speed.mean_seconds
        filled = 20 * step // steps
        parts = [
            f"step {step:>{len(str(steps))}}/{steps} [{'#' * filled}{'.' * (20 - filled)}]",
            f"loss {metrics.loss:.4f}",
            f"grad norm {metrics.grad_norm:.3f}",
            f"lr {metrics.lr:.2e}",
            f"{_short(self._speed.tokens_per_second(mean))} tokens/s",
        ]
        if (utilization := self._speed.utilization(mean)) is not None:
            parts.append(f"MFU {utilization:.1%}")
        parts.append(f"{_clock(mean * (steps - step))} left")
        if metrics.validation:
            parts.append(f"validation loss {metrics.validation.loss:.4f} (unigram {self._unigram_entropy:.4f})")
            parts += [f"{name} {loss:.4f}" for name, loss in metrics.validation.corpora.items()]
        say("  ".join(parts), sys.stdout)


def _short(value: float) -> str:
    for unit in ("", "k", "M"):
        if value < 1000:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}G"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
