"""Position encodings, one per file. Their names are in megatape/registry.py, their interface in encoding.py."""

from megatape.config import ModelConfig
from megatape.encodings.encoding import Encoding
from megatape.registry import ENCODINGS


def encoding_of(config: ModelConfig) -> Encoding:
    """Return the encoding of a configured model."""
    encoding_class = ENCODINGS[config.encoding].load()
    return encoding_class(config)
