"""Parses the encodings that a study asks for, and puts them into a model's configuration."""

from pydantic import ValidationError

from megatape.config import ModelConfig
from megatape.errors import UserError, did_you_mean
from megatape.registry import ENCODINGS


def parse_encodings(text: str) -> list[str]:
    """The encodings of a list such as "rope,tape". Raises UserError for an unknown or repeated one."""
    names = [known_encoding(name.strip()) for name in text.split(",")]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"encodings: {name} is listed twice")
    return names


def known_encoding(name: str) -> str:
    """Returns `name`. Raises UserError that lists all encodings if it is not one of them."""
    if name not in ENCODINGS:
        raise UserError(
            f"encodings: {name!r} is not an encoding: {did_you_mean(name, ENCODINGS)}choose from {', '.join(ENCODINGS)}"
        )
    return name


def with_encoding(config: ModelConfig, encoding: str) -> ModelConfig:
    """The same model with another encoding, without scaling. Raises UserError if the shape does not allow it."""
    if encoding == config.encoding:
        return config
    try:
        return ModelConfig.model_validate(config.model_dump() | {"encoding": encoding, "scaling": None})
    except ValidationError as error:
        raise UserError(f"encoding {encoding}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
