"""Names and paths of files: untrusted names, temporary names, and folders without links."""

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


# Name of a file in a folder. It is no path that leads elsewhere.
FileName = Annotated[str, AfterValidator(_check_file_name)]


def temporary_name(path: Path) -> Path:
    """Return a new name in the same folder, for a file or folder that is renamed to `path` once it is complete."""
    return path.with_name(f"{path.name}.{token_hex(8)}.tmp")


def real_paths(folders: Sequence[Path]) -> list[Path]:
    """Return the paths of folders without links. Raises UserError if one is given twice."""
    # Not Path.resolve, which raises no OSError for a loop of links.
    paths = [Path(os.path.realpath(folder)) for folder in folders]
    for folder, path in zip(folders, paths, strict=True):
        if paths.count(path) > 1:
            raise UserError(f"{folder} is given twice")
    return paths
