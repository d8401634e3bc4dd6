"""File names and paths: untrusted names, temporary names, and folders without links."""

import os
from collections.abc import Sequence
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


def real_paths(folders: Sequence[Path]) -> list[Path]:
    """Resolve all links in the paths of folders. Raise a UserError if one is given twice."""
    # Unlike Path.resolve, realpath reports a loop of links.
    paths = [Path(os.path.realpath(folder)) for folder in folders]
    for folder, path in zip(folders, paths, strict=True):
        if paths.count(path) > 1:
            raise UserError(f"{folder} is given twice")
    return paths
