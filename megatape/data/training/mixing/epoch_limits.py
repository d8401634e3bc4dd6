"""Limits on each corpus's epochs."""

from bisect import bisect_right
from collections.abc import Mapping

from megatape.config.sections.batches import BatchSizes
from megatape.config.sections.data import CorpusConfig
from megatape.data.training.mixing.mixture import Mixture
from megatape.errors import UserError


def check_epochs(mixture: Mixture, settings: Mapping[str, CorpusConfig], steps: int, batches: BatchSizes) -> None:
    """Check that a run stays within max_epochs of each corpus.

    Args:
        mixture: Training data of the run.
        settings: Each corpus's configuration section, by name.
        steps: Steps in the run.
        batches: Batch sizes, which decide how many samples these steps consume.

    Raises:
        UserError: The run would exceed max_epochs of a corpus.
    """
    for name, num_used in mixture.order.counts(batches.consumed(steps)).items():
        max_epochs = settings[name].max_epochs
        num_available = mixture.corpora[name].num_samples
        if max_epochs is None or num_used <= max_epochs * num_available:
            continue

        def used_until(step: int, name: str = name) -> int:
            return mixture.order.counts(batches.consumed(step))[name]

        last_step = bisect_right(range(steps + 1), max_epochs * num_available, key=used_until)
        epochs = num_used / num_available
        raise UserError(
            f"data.mixture.{name}: training.steps {steps} use {num_used:,} samples of it, {epochs:.2f} epochs of its "
            f"{num_available:,}, and max_epochs is {max_epochs}, which ends in step {last_step}: lower its weight or "
            "training.steps, raise max_epochs, or prepare more text"
        )
