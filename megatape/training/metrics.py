"""Everything a run tells about itself, from one place: metrics.jsonl, TensorBoard, the console."""

import json
from pathlib import Path
from typing import Any, Self, TextIO

from torch.utils.tensorboard import SummaryWriter

from megatape.config import Config
from megatape.model.accounting import forward_flops
from megatape.run_folder import RunFolder
from megatape.runtime.topology import Topology
from megatape.training.evaluation import Validation
from megatape.training.hardware import peak_flops, peak_memory


class Metrics:
    """Writes on the main rank, does nothing elsewhere. Context manager.

    metrics.jsonl has one object for every step: step, loss (mean over its targets, nats), grad_norm (before clipping), lr,
    tokens and samples (since the beginning of the run), seconds (of this step), and validation_loss where the step was evaluated."""

    def __init__(self, config: Config, topology: Topology, start_step: int, unigram_entropy: float) -> None:
        self.config = config
        self.is_main = topology.is_main
        self.elapsed = 0.0  # seconds of all steps since this process started
        self.start_step = start_step
        self.unigram_entropy = unigram_entropy
        # Backward costs twice the forward pass; recomputation under activation checkpointing is not useful work.
        self.flops_per_step = 3 * forward_flops(config.model, config.data.sequence_length) * config.training.global_batch_size
        peak = peak_flops(config.training.precision)
        self.peak = peak and peak * topology.world_size
        self.file: TextIO | None = None
        if self.is_main:
            folder = RunFolder(Path(config.run.directory))
            self.file = _open_log(folder.metrics, start_step)
            self.board = SummaryWriter(str(folder.tensorboard), purge_step=start_step + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file:
            self.file.close()
            self.board.close()

    def step(
        self, step: int, loss: float, grad_norm: float, lr: float, samples: int, seconds: float, validation: Validation | None
    ) -> None:
        """Record optimizer step number `step`, counted from 1."""
        self.elapsed += seconds
        if self.file is None:
            return
        tokens = samples * self.config.data.sequence_length
        entry: dict[str, Any] = {
            "step": step,
            "loss": loss,
            "grad_norm": grad_norm,
            "lr": lr,
            "tokens": tokens,
            "samples": samples,
            "seconds": seconds,
        }
        if validation:
            entry["validation_loss"] = validation.loss
        self.file.write(json.dumps(entry) + "\n")
        self.file.flush()
        if validation or step % self.config.logging.interval == 0 or step == self.start_step + 1:
            self._board(entry, validation)
            self._console(entry)

    def say(self, text: str) -> None:
        """Print one line on the main rank."""
        if self.is_main:
            print(text, flush=True)

    def _board(self, entry: dict[str, Any], validation: Validation | None) -> None:
        step, seconds = entry["step"], entry["seconds"]
        values = {
            "loss/train": entry["loss"],
            "gradient norm": entry["grad_norm"],
            "learning rate": entry["lr"],
            "speed/tokens per second": self._tokens_per_step / seconds,
            "memory/peak GiB": peak_memory() / 2**30,
        }
        if self.peak:
            values["speed/MFU"] = self.flops_per_step / seconds / self.peak
        if validation:
            values["loss/validation"] = validation.loss
            values |= {f"position norm/layer {layer}": norm for layer, norm in enumerate(validation.position_norms)}
        for name, value in values.items():
            self.board.add_scalar(name, value, step)

    def _console(self, entry: dict[str, Any]) -> None:
        step, steps = entry["step"], self.config.training.steps
        mean = self.elapsed / (step - self.start_step)
        filled = 20 * step // steps
        parts = [
            f"step {step:>{len(str(steps))}}/{steps} [{'#' * filled}{'.' * (20 - filled)}]",
            f"loss {entry['loss']:.4f}",
            f"grad norm {entry['grad_norm']:.3f}",
            f"lr {entry['lr']:.2e}",
            f"{_short(self._tokens_per_step / mean)} tokens/s",
        ]
        if self.peak:
            parts.append(f"MFU {self.flops_per_step / mean / self.peak:.1%}")
        parts.append(f"{_clock(mean * (steps - step))} left")
        if "validation_loss" in entry:
            parts.append(f"validation loss {entry['validation_loss']:.4f} (unigram {self.unigram_entropy:.4f})")
        print("  ".join(parts), flush=True)

    @property
    def _tokens_per_step(self) -> int:
        return self.config.training.global_batch_size * self.config.data.sequence_length


def _open_log(path: Path, start_step: int) -> TextIO:
    """Open metrics.jsonl for appending behind `start_step`: what a run wrote after the checkpoint will be written again."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= start_step]
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    return path.open("a", encoding="utf-8")


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
