"""How fast a run trains."""

from megatape.config import Config
from megatape.model.accounting import forward_flops
from megatape.training.hardware import peak_flops


class Speed:
    """Rates of all ranks together. mean_seconds: of a step, since this process started."""

    def __init__(self, config: Config, world_size: int) -> None:
        self._tokens_per_step = config.training.global_batch_size * config.data.sequence_length
        # Backward costs twice the forward pass; recomputation under activation checkpointing is not useful work.
        forward = forward_flops(config.model, config.data.sequence_length, config.training.num_shifted_groups)
        self._flops_per_step = 3 * forward * config.training.global_batch_size
        peak = peak_flops(config.training.precision)
        self._peak = peak and peak * world_size
        self._steps, self._seconds = 0, 0.0

    def add_step(self, seconds: float) -> None:
        """A step took so long."""
        self._steps += 1
        self._seconds += seconds

    @property
    def mean_seconds(self) -> float:
        return self._seconds / self._steps

    def tokens_per_second(self, seconds: float) -> float:
        """At steps of `seconds`."""
        return self._tokens_per_step / seconds

    def utilization(self, seconds: float) -> float | None:
        """Model FLOPs utilization at steps of `seconds`, None where the peak of the device is not known."""
        return self._flops_per_step / seconds / self._peak if self._peak else None
