"""Changing and damaging JSON files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Value of an entry to remove
REMOVED = object()


def edit_json(path: Path, edit: Callable[[Any], object]) -> None:
    """Edit a JSON file in place.

    Args:
        path: File to change.
        edit: Changes the parsed content; its result is ignored.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def set_entry(content: Any, entry: str, value: object) -> None:
    """Set or remove an entry in parsed JSON.

    Args:
        content: Objects and arrays, as json.loads returns them.
        entry: Keys and indices leading to the entry, such as "shards.0.bytes".
        value: New value, or REMOVED.
    """
    *parents, last = [int(part) if part.isdigit() else part for part in entry.split(".")]
    for parent in parents:
        content = content[parent]
    if value is REMOVED:
        del content[last]
    else:
        content[last] = value


def set_file_entry(path: Path, entry: str, value: object) -> None:
    """Set or remove an entry in a JSON file, as `set_entry` does."""
    edit_json(path, lambda content: set_entry(content, entry, value))


def change_fields(path: Path, **fields: Any) -> None:
    """Set top-level fields in a JSON file."""
    edit_json(path, lambda content: content.update(fields))
