"""Silence of transformers while models are evaluated."""

from transformers.utils.logging import disable_progress_bar, set_verbosity_error


def silence_transformers() -> None:
    """Hide progress bars, and warnings about scaling factors not covering all of max_positions."""
    disable_progress_bar()
    set_verbosity_error()
