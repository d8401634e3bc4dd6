"""Prints steps on the terminal."""

import logging

from megatape.training.reporting.step_metrics import StepMetrics
from megatape.training.sinks.sink import Sink
from megatape.utils.text.units import format_count, format_duration

LOG = logging.getLogger(__name__)

# SI prefixes.
UNITS = ("", "k", "M", "G")

# Width of the progress bar in characters.
BAR_WIDTH = 20


class Console(Sink):
    """Sink printing progress, loss, gradient norm, mean speed since this process started, and remaining time."""

    def write(self, metrics: StepMetrics) -> None:
        step = metrics.step
        steps = self.run.config.training.steps
        filled = BAR_WIDTH * step // steps
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        width = len(str(steps))
        parts = [
            f"step {step:>{width}}/{steps} [{bar}]",
            f"loss {metrics.loss:.4f}",
            f"grad norm {metrics.grad_norm:.3f}",
            f"lr {metrics.lr:.2e}",
        ]
        if self.run.speed.has_steps:
            parts += self._speed_parts(step)
        validation = metrics.validation
        if validation is not None:
            parts.append(f"validation loss {validation.loss:.4f} (unigram {self.run.unigram_entropy:.4f})")
            if validation.ema_loss is not None:
                parts.append(f"of the EMA {validation.ema_loss:.4f}")
            parts += [f"{name} {loss:.4f}" for name, loss in validation.parts.items()]
        LOG.info("  ".join(parts))

    def _speed_parts(self, step: int) -> list[str]:
        """Return mean speed, utilization and the time remaining after `step`."""
        tokens, utilization = self.run.speed.mean()
        parts = [f"{format_count(tokens, UNITS)} tokens/s"]
        if utilization is not None:
            parts.append(f"MFU {utilization:.1%}")
        parts.append(f"{format_duration(self.run.speed.seconds_left(step))} left")
        return parts
