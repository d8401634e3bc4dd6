"""Silence of transformers while models are evaluated."""

from transformers.utils.logging import disable_progress_bar, set_verbosity_error


def silence_transformers() -> None:
    """Hide progress bars, and the warnings about scaling factors that do not cover all of max_positions."""
    disable_progress_bar()
    set_verbosity_error()
