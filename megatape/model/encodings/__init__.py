"""The position encodings, a file each; megatape/registry.py has their names."""

from megatape.config import ModelConfig
from megatape.model.encodings.encoding import Encoding
from megatape.registry import ENCODINGS


def encoding_of(config: ModelConfig) -> Encoding:
    """The encoding that a model with this configuration has."""
    encoding: Encoding = ENCODINGS[config.encoding].load()(config)
    return encoding
