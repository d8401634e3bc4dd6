"""Opening a run's data from its whole configuration."""

from megatape.config import Config
from megatape.data.training.run_data import RunData, open_data


def open_run_data(config: Config) -> RunData:
    """Open the data for a run with this configuration."""
    return open_data(config.data, config.training, config.evaluation, config.model.vocab_size)
