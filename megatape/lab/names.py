"""Lists of names and folders in options."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from megatape.errors import UserError, flag
from megatape.errors.suggestions import choose_one


def parse_names(option: str, text: str, known: Collection[str], noun: str) -> list[str]:
    """Split a list such as "rope,tape" into its names.

    Args:
        option: Name of the option, for messages.
        text: Names separated by commas.
        known: Names to choose from.
        noun: Kind of name, such as "an encoding".

    Raises:
        UserError: A name is unknown or repeated.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"{flag(option)}: {name!r} is not {noun}: {choose_one(name, known)}")
        if names.count(name) > 1:
            raise UserError(f"{flag(option)}: {name} is listed twice")
    return names


def real_paths(folders: Sequence[Path]) -> list[Path]:
    """Resolve all links in the paths of folders. Raise a UserError if one is given twice."""
    # Path.resolve would raise a RuntimeError for a loop of links.
    paths = [Path(os.path.realpath(folder)) for folder in folders]
    for folder, path in zip(folders, paths, strict=True):
        if paths.count(path) > 1:
            raise UserError(f"{folder} is given twice")
    return paths
