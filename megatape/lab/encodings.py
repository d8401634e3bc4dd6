"""Lists of names that commands take, and the same model with another encoding."""

from collections.abc import Collection

from pydantic import ValidationError

from megatape.config import ModelConfig
from megatape.errors import UserError, choose_one
from megatape.registry import ENCODINGS

BASELINE: str = "rope"  # the encoding that others are compared with


def parse_names(option: str, text: str, known: Collection[str], noun: str) -> list[str]:
    """The names of a list such as "rope,tape".

    Args:
        option: Option that has the list, for messages.
        text: Names with commas between them.
        known: Names to choose from.
        noun: A name's kind, such as "an encoding".

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
    """The encodings of a list such as "rope,tape". Raises UserError for an unknown or repeated one."""
    return parse_names("encodings", text, ENCODINGS, "an encoding")


def with_encoding(config: ModelConfig, encoding: str) -> ModelConfig:
    """The same model with another encoding, without scaling. Raises UserError if the shape does not allow it."""
    if encoding == config.encoding:
        return config
    try:
        return ModelConfig.model_validate(config.model_dump() | {"encoding": encoding, "scaling": None})
    except ValidationError as error:
        raise UserError(f"encoding {encoding}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
