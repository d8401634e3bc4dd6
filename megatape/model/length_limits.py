"""Sample lengths that the model's positions and window do not support."""

from megatape.config import Config
from megatape.config.limits import Limit


def _too_long_samples(config: Config) -> str | None:
    length = config.data.sequence_length
    positions = config.model.max_positions
    if length > positions:
        return (
            f"data.sequence_length {length} is longer than model.max_positions {positions}: shorten the samples, or raise "
            "max_positions"
        )
    return None


def _window_beyond_samples(config: Config) -> str | None:
    """A model that starts from other weights keeps their windows, however short its samples are."""
    layers = config.model.layers
    length = config.data.sequence_length
    if layers is None or config.training.init_from is not None:
        return None
    for window in config.model.pattern.windows:
        if window is not None and window > length:
            return (
                f"model.layers {layers} has a window of {window}, longer than data.sequence_length {length}: it hides no "
                "token, so write full, or a shorter window"
            )
    return None


LIMITS: tuple[Limit[Config], ...] = (_too_long_samples, _window_beyond_samples)
