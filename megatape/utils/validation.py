"""JSON values as types, and the first fault of one that has another type, in one line."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from megatape.errors import UserError

# Maximum number of characters of a value in a message.
SHOWN_CHARACTERS = 80

_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
Result = TypeVar("Result")


def as_type(value: Any, kind: type[Result]) -> Result:
    """Return a JSON value as a type, whose fields have the types that it declares.

    Args:
        value: Result of `read_json` or `parse_json`.
        kind: A dataclass, a model of pydantic, or a type made of them.

    Raises:
        UserError: A field is missing or has another type. The message has one line, and names the first such field.
    """
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise UserError(first_fault(error)) from None


def first_fault(error: ValidationError) -> str:
    """Describe the first fault of an error: its field, what is wrong, and a short value."""
    fault = error.errors(include_url=False)[0]
    field = ".".join(map(str, fault["loc"]))
    return describe_fault(fault, field)


def describe_fault(fault: Mapping[str, Any], field: str) -> str:
    """Describe a fault of a pydantic.ValidationError in one line, such as "steps: must be at least 1, got 0".

    Args:
        fault: An entry of `ValidationError.errors()`.
        field: Name of the field, empty for the whole value.

    Returns:
        The line. Errors of our validators keep their words: "kind is 'x': choose one of a, b"; "data path is missing".
    """
    value = fault["input"]
    if fault["type"] == "value_error":
        return _describe_own_error(fault["msg"].removeprefix("Value error, "), value, field)
    message = _in_plain_words(fault["msg"])
    if fault["type"] != "missing":
        message += f", got {_shown(value)}"
    if not field:
        return message
    return f"{field}: {message}"


def _describe_own_error(message: str, value: Any, field: str) -> str:
    """Return the line of an error that a validator of ours has raised."""
    if not field:
        return message
    if isinstance(value, dict | list | tuple):
        return f"{field} {message}"
    return f"{field} is {_shown(value)}: {message}"


def _in_plain_words(message: str) -> str:
    """Return a message of pydantic in the words of JSON."""
    message = message.replace("Input should be", "must be")
    message, _, _ = message.partition(" or instance of")
    message = message.replace("a valid dictionary", "an object")
    return message.replace("a valid tuple", "a list")


def _shown(value: Any) -> str:
    """Return a short text for a value."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, str):
        return repr(value[:SHOWN_CHARACTERS])
    return json.dumps(value, default=str)[:SHOWN_CHARACTERS]
