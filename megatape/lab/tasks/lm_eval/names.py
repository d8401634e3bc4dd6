"""Finds names of lm-eval's tasks by searching its files: importing it and parsing them takes half a minute."""

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from megatape.errors import UserError

# Suffixes of files without names. Other files are YAML, some without a suffix.
WITHOUT_NAMES = (".py", ".pyc", ".md", ".json", ".jsonl", ".txt", ".csv")
# A line of YAML that defines a task, group or tag, or lists one.
DEFINED = re.compile(
    rb"""^[ \t]*(?:-[ \t]*)?["']?(?:task|group|tag)["']?:[ \t]*["']?([^\s"',\[\]{}]+)"""
    rb"""|^[ \t]*-[ \t]+["']?([^\s"',\[\]{}:]+)["']?[ \t]*$""",
    re.MULTILINE,
)


def check_names(names: Iterable[str], include: Path | None) -> None:
    """Check that each name occurs as a word in the files that define lm-eval's tasks.

    A name that passes may still not be a task's; lm-eval reports that later. If lm-eval is not installed, nothing is checked.

    Args:
        names: Names of tasks, groups or tags.
        include: Folder with the user's own task files.

    Raises:
        UserError: No file contains one of the names.
    """
    found = find_spec("lm_eval")
    if found is None or found.submodule_search_locations is None:
        return
    folders = [Path(place) / "tasks" for place in found.submodule_search_locations]
    if include is not None:
        folders.append(include)
    parts = []
    for folder in folders:
        parts += [path.read_bytes() for path in _files(folder)]
    content = b"\n".join(parts)
    for name in names:
        word = re.escape(name.encode(errors="replace"))
        if not re.search(rb"(?<![\w.+-])" + word + rb"(?![\w.+-])", content):
            raise unknown_task(name, _defined_names(content))


def _defined_names(content: bytes) -> set[str]:
    """Return the names of tasks, groups and tags in the content of YAML files."""
    names = set()
    for match in DEFINED.finditer(content):
        name = match[1] or match[2]
        names.add(name.decode(errors="replace"))
    return names


def unknown_task(name: str, known: Iterable[str]) -> UserError:
    """Return the error about a task that lm-eval does not have.

    Args:
        name: Unknown name.
        known: Names of lm-eval's tasks.
    """
    near = get_close_matches(name, list(known))
    hint = ""
    if near:
        hint = f", but {', '.join(near)}"
    return UserError(f"tasks: lm-eval has no {name!r}{hint}")


def _files(folder: Path) -> Iterable[Path]:
    """Yield the files in a folder, at any depth, that may define tasks."""
    for directory, _, names in os.walk(folder, followlinks=True):
        for name in names:
            path = Path(directory, name)
            if path.suffix not in WITHOUT_NAMES and path.is_file():
                yield path
