"""Converts JSON values to types, and describes the first mismatch in one line."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from megatape.errors import UserError

# Maximum characters of a value in a message.
SHOWN_CHARACTERS = 80

_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
Result = TypeVar("Result")


def as_type(value: Any, kind: type[Result]) -> Result:
    """Convert a JSON value to a type, checking all fields.

    Args:
        value: Result of `read_json` or `parse_json`.
        kind: Dataclass, pydantic model, or a type made of them.

    Raises:
        UserError: A field is missing or has another type. The one-line message names the first such field.
    """
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise UserError(first_mismatch(error)) from None


def first_mismatch(error: ValidationError) -> str:
    """Describe the first entry of an error: field, what is wrong, and a short value."""
    details = error.errors(include_url=False)[0]
    field = ".".join(map(str, details["loc"]))
    return describe_mismatch(details, field)


def describe_mismatch(details: Mapping[str, Any], field: str) -> str:
    """Describe a mismatch in one line, such as "steps: must be at least 1, got 0".

    Our own validators' errors keep their words: "kind is 'x': choose one of a, b"; "data path is missing".

    Args:
        details: Entry of `ValidationError.errors()`.
        field: Field name, "" for the whole value.
    """
    value = details["input"]
    if details["type"] == "value_error":
        return _describe_own_error(details["msg"].removeprefix("Value error, "), value, field)
    message = _in_plain_words(details["msg"])
    if details["type"] != "missing":
        message += f", got {_shown(value)}"
    if not field:
        return message
    return f"{field}: {message}"


def _describe_own_error(message: str, value: Any, field: str) -> str:
    if not field:
        return message
    if isinstance(value, dict | list | tuple):
        return f"{field} {message}"
    return f"{field} is {_shown(value)}: {message}"


def _in_plain_words(message: str) -> str:
    """Translate pydantic's message into the words of JSON."""
    message = message.replace("Input should be", "must be")
    message, _, _ = message.partition(" or instance of")
    message = message.replace("a valid dictionary", "an object")
    message = message.replace("True", "true").replace("False", "false")
    return message.replace("a valid tuple", "a list")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, str):
        return repr(value[:SHOWN_CHARACTERS])
    return json.dumps(value, default=str)[:SHOWN_CHARACTERS]
