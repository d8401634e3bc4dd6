"""Sample lengths that the model's positions and window do not support."""

from megatape.config import Config
from megatape.config.limits import Limit


def _too_long_samples(config: Config) -> str | None:
    length = config.data.sequence_length
    positions = config.model.max_positions
    window = config.model.sliding_window
    if length > positions:
        return (
            f"data.sequence_length {length} is longer than model.max_positions {positions}: shorten the samples, or raise "
            "max_positions"
        )
    if window is not None and length > window:
        return f"data.sequence_length {length} is longer than model.sliding_window {window}: shorten the samples"
    return None


LIMITS: tuple[Limit[Config], ...] = (_too_long_samples,)
