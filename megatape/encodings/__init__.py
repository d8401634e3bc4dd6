"""Position encodings, one file each. megatape/registry.py lists their names."""

from megatape.config import ModelConfig
from megatape.encodings.encoding import Encoding
from megatape.registry import ENCODINGS


def encoding_of(config: ModelConfig) -> Encoding:
    """Return the encoding of a model."""
    encoding_class = ENCODINGS[config.encoding].load()
    return encoding_class(config)
