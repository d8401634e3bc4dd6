"""File names: untrusted ones, and temporary ones."""

from pathlib import Path
from secrets import token_hex
from typing import Annotated

from pydantic import AfterValidator

from megatape.errors import UserError


def _check_file_name(name: str) -> str:
    if name in ("", ".", "..") or set(name) & set("/\0"):
        raise UserError("not a plain file name")
    return name


# File name inside a folder, never a path leading elsewhere.
FileName = Annotated[str, AfterValidator(_check_file_name)]


def temporary_name(path: Path) -> Path:
    """Return a new name in the same folder, for output that is renamed to `path` once complete."""
    return path.with_name(f"{path.name}.{token_hex(8)}.tmp")
