"""Reads fields of records, and maps them to the names expected by a format."""

from collections.abc import Sequence
from typing import Any

from megatape.errors import RecordError, UserError, flag
from megatape.errors.suggestions import did_you_mean


def text_of(record: dict[str, Any], name: str) -> str:
    """Return the text in a field. Raises RecordError if the field is missing or not a text."""
    if name not in record:
        raise missing_field(name, record)
    if not isinstance(record[name], str):
        raise RecordError(f"{name!r} is {record[name]!r:.40}, not a string")
    return str(record[name])


def missing_field(name: str, value: Any, path: str = "") -> RecordError:
    """Return the error about a missing field, listing the fields present.

    Args:
        name: Missing field.
        value: Value that should contain it.
        path: Path of the value in the record; empty for the record itself.
    """
    path = path or "the record"
    if isinstance(value, list):
        return RecordError(f"{name!r} is missing; {path} is a list of {len(value)}")
    if not isinstance(value, dict):
        return RecordError(f"{name!r} is missing; {path} is {value!r:.40}")
    names = ", ".join(map(repr, value)) or "no fields"
    question = did_you_mean(name, map(str, value)).strip()
    if question:
        names += f" ({question})"
    return RecordError(f"{name!r} is missing; {path} has {names}")


class FieldMapping:
    """Copies values of a record to the fields of a format.

    Args:
        texts: Mappings such as "answer=answers.text.0": a format field, and the path to its value in a record, made of field
            names and list indices.
        fields: Fields of the format; empty: any.

    Raises:
        UserError: A mapping is malformed, or the format has no such field.
    """

    def __init__(self, texts: Sequence[str], fields: Sequence[str] = ()) -> None:
        self._paths: dict[str, str] = {}
        for text in texts:
            name, _, path = text.partition("=")
            if not name or not path or name in self._paths:
                raise UserError(f"{flag('fields')} {text!r}: give each field of the format once, such as answer=response")
            if fields and name not in fields:
                raise UserError(f"{flag('fields')} {text!r}: {did_you_mean(name, fields)}the format reads {', '.join(fields)}")
            self._paths[name] = path

    def apply(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the record with the format's fields added. Raises RecordError naming the missing part of a path."""
        return record | {name: _value(record, path) for name, path in self._paths.items()}


def _value(record: dict[str, Any], path: str) -> Any:
    # Field names may contain dots.
    if path in record:
        return record[path]
    value: Any = record
    parts = path.split(".")
    for index, part in enumerate(parts):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise missing_field(part, value, ".".join(parts[:index]))
    return value
