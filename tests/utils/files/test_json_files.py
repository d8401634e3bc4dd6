"""JSON files are read and written within the same limits."""

from pathlib import Path
from typing import Any

import pytest

from megatape.errors import UserError
from megatape.utils.files.json_files import MAX_DEPTH, MAX_JSON_BYTES, json_content, parse_json, read_json


def test_deep_json_is_refused() -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        inside = opened * MAX_DEPTH + "1" + closed * MAX_DEPTH
        assert parse_json(inside)
        for text in (f"{opened}{inside}{closed}", opened * 100_000 + "1" + closed * 100_000):
            with pytest.raises(ValueError, match="nested more than 64 levels deep"):
                parse_json(text)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """Writer and reader have the same limits: both accept the largest value and reject a larger one."""
    path = tmp_path / "file.json"
    deepest: Any = 1
    for _ in range(MAX_DEPTH):
        deepest = (deepest,)
    for value, larger, message in (
        (deepest, [deepest], "file.json would be nested more than 64 levels deep, and could not be read again"),
        ("x" * 98, "x" * 99, "file.json would have 101 bytes, and more than 100 could not be read again"),
    ):
        max_bytes = 100 if isinstance(value, str) else MAX_JSON_BYTES
        path.write_bytes(json_content(value, path.name, max_bytes=max_bytes))
        assert read_json(path, max_bytes=max_bytes)
        with pytest.raises(UserError, match=message):
            json_content(larger, path.name, max_bytes=max_bytes)
    path.write_bytes(json_content({"a": path}, path.name, indent=1, default=str))
    assert read_json(path) == {"a": str(path)}


def test_large_json_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"[" + b" " * 98 + b"]")
    assert read_json(path, max_bytes=100) == []
    with pytest.raises(ValueError, match="larger than 99 bytes"):
        read_json(path, max_bytes=99)
    with path.open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="larger than 67,108,864 bytes"):
        read_json(path)
