"""A line on the terminal."""

import logging

from megatape.training.callbacks.callback import Sink
from megatape.training.step import StepMetrics
from megatape.utils.units import format_count, format_duration

LOG = logging.getLogger(__name__)
UNITS = ("", "k", "M", "G")  # of the International System


class Console(Sink):
    """One line: progress, loss, gradient norm, mean speed since this process started, and the time that is left."""

    def write(self, metrics: StepMetrics) -> None:
        step, steps, (tokens, utilization) = metrics.step, self.run.config.training.steps, self.run.speed.mean()
        filled = 20 * step // steps
        parts = [
            f"step {step:>{len(str(steps))}}/{steps} [{'#' * filled}{'.' * (20 - filled)}]",
            f"loss {metrics.loss:.4f}",
            f"grad norm {metrics.grad_norm:.3f}",
            f"lr {metrics.lr:.2e}",
            f"{format_count(tokens, UNITS)} tokens/s",
        ]
        if utilization is not None:
            parts.append(f"MFU {utilization:.1%}")
        parts.append(f"{format_duration(self.run.speed.seconds_left(step))} left")
        if metrics.validation:
            parts.append(f"validation loss {metrics.validation.loss:.4f} (unigram {self.run.unigram_entropy:.4f})")
            if metrics.validation.ema_loss is not None:
                parts.append(f"of the EMA {metrics.validation.ema_loss:.4f}")
            parts += [f"{name} {loss:.4f}" for name, loss in metrics.validation.parts.items()]
        LOG.info("  ".join(parts))
