"""Position encodings, a file each. megatape/registry.py lists them."""

from megatape.config import ModelConfig
from megatape.encodings.encoding import Encoding
from megatape.registry import ENCODINGS


def encoding_of(config: ModelConfig) -> Encoding:
    """The encoding of a model with this configuration."""
    return ENCODINGS[config.encoding].load()(config)
