"""Lists of names in options, and the same model with another encoding."""

from collections.abc import Collection

from pydantic import ValidationError

from megatape.config import ModelConfig
from megatape.errors import UserError
from megatape.errors.suggestions import choose_one
from megatape.registry import ENCODINGS

# Encoding that the others are compared with.
BASELINE: str = "rope"


def parse_names(option: str, text: str, known: Collection[str], noun: str) -> list[str]:
    """Split a list such as "rope,tape" into its names.

    Args:
        option: Name of the option, for messages.
        text: Names with commas.
        known: Names to choose from.
        noun: Kind of the names, such as "an encoding".

    Raises:
        UserError: A name is unknown or repeated.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"{option}: {name!r} is not {noun}: {choose_one(name, known)}")
        if names.count(name) > 1:
            raise UserError(f"{option}: {name} is listed twice")
    return names


def parse_encodings(text: str) -> list[str]:
    """Split a list of encodings such as "rope,tape". Raises UserError for an unknown or repeated one."""
    return parse_names("encodings", text, ENCODINGS, "an encoding")


def with_encoding(config: ModelConfig, encoding: str) -> ModelConfig:
    """Return the same model with another encoding, without scaling. Raises UserError if the shape does not allow it."""
    if encoding == config.encoding:
        return config
    try:
        return ModelConfig.model_validate(config.model_dump() | {"encoding": encoding, "scaling": None})
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UserError(f"encoding {encoding}: {message}") from None
