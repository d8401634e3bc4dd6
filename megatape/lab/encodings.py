"""Encodings to compare: parsing their names, and swapping the encoding of a model."""

from pydantic import ValidationError

from megatape.config import ModelConfig
from megatape.errors import UserError, flag
from megatape.lab.names import parse_names
from megatape.registry import ENCODINGS

# Encoding to compare the others with.
BASELINE: str = "rope"


def parse_encodings(text: str) -> list[str]:
    """Split a list of encodings such as "rope,tape". Raises UserError for an unknown or repeated one."""
    return parse_names("encodings", text, ENCODINGS, "an encoding")


def with_encoding(config: ModelConfig, encoding: str) -> ModelConfig:
    """Return the model with another encoding and without scaling. Raises UserError if the shape does not allow it."""
    if encoding == config.encoding:
        return config
    try:
        changes: dict[str, object] = {"encoding": encoding, "scaling": None}
        if config.layers is not None:
            changes["layers"] = str(config.pattern.renamed(config.encoding, encoding))
        return ModelConfig.model_validate(config.model_dump() | changes)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UserError(f"{flag('encoding')} {encoding}: {message}") from None
