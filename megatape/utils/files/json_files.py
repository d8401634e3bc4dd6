"""Reads untrusted JSON files, and encodes JSON within the same limits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatape.errors import UserError
from megatape.utils.files.files import open_regular

# Maximum file size. Only a data directory's index and plan may be larger.
MAX_JSON_BYTES = 64 * 2**20
# Maximum nesting depth. Our files have less than ten levels, and Python's parser gives up near a thousand.
MAX_DEPTH = 64


def read_json(path: Path, unique_keys: bool = False, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Return the value in a JSON file.

    Args:
        path: File to read.
        unique_keys: Whether to refuse objects with duplicate keys.
        max_bytes: Maximum file size.

    Raises:
        OSError: The file cannot be read.
        JSONDecodeError: The file is not JSON.
        UserError: The file is too large, too deeply nested, a pipe or a device, or has a duplicate key.
    """
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UserError(f"larger than {max_bytes:,} bytes")
    return parse_json(content, unique_keys)


def parse_json(text: str | bytes, unique_keys: bool = False) -> Any:
    """Return the value in a JSON text.

    Args:
        text: JSON text.
        unique_keys: Whether to refuse objects with duplicate keys. Otherwise a key's last value counts.

    Raises:
        JSONDecodeError: The text is not JSON. This is a ValueError.
        UserError: The text is nested more than MAX_DEPTH levels deep, or has a duplicate key.
    """
    hook = None
    if unique_keys:
        hook = _unique
    try:
        value = json.loads(text, object_pairs_hook=hook)
    except RecursionError:
        raise UserError(f"nested more than {MAX_DEPTH} levels deep") from None
    check_depth(value)
    return value


def check_depth(value: Any, max_depth: int = MAX_DEPTH) -> None:
    """Raise a UserError if a JSON value is nested more than `max_depth` levels deep."""
    level = [value]
    for _ in range(max_depth + 1):
        containers = [value for value in level if isinstance(value, dict | list | tuple)]
        if not containers:
            return
        level = []
        for container in containers:
            if isinstance(container, dict):
                level += container.values()
            else:
                level += container
    raise UserError(f"nested more than {max_depth} levels deep")


def json_content(
    value: Any,
    name: str,
    indent: int | None = None,
    max_bytes: int = MAX_JSON_BYTES,
    default: Callable[[Any], Any] | None = None,
) -> bytes:
    """Encode the content of a JSON file within the limits of `read_json`.

    Args:
        value: Value to encode.
        name: File name in error messages.
        indent: Spaces per level, or None for a single line.
        max_bytes: Maximum size that the reader accepts.
        default: Converts values of types that JSON does not have.

    Raises:
        UserError: The value is too large or too deeply nested to be read again.
        TypeError: The value contains a type that is neither JSON's nor converted.
    """
    try:
        check_depth(value)
    except UserError as error:
        raise UserError(f"{name} would be {error}, and could not be read again") from None
    content = json.dumps(value, indent=indent, default=default).encode()
    if len(content) > max_bytes:
        raise UserError(f"{name} would have {len(content):,} bytes, and more than {max_bytes:,} could not be read again")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object. Raise a UserError for a duplicate key."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise UserError(f"duplicate key {key} in one object")
        values[key] = value
    return values
