"""Number of weights that a configuration trains, and settings in which the samples of two configurations differ."""

from megatape.accounting.whole_model.parameters import count_trainable
from megatape.config import Config, differences
from megatape.config.section import ResumeRule


def num_trained(config: Config) -> int:
    """Return the number of trained weights."""
    return count_trainable(config.model, config.training.trainable, config.training.frozen)


def changed_samples(config: Config, other: Config) -> list[str]:
    """Return the differing settings that change a run's samples."""
    return [each.path for each in differences(config, other) if each.rule is ResumeRule.SAMPLES]
