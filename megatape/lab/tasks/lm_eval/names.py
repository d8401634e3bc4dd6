"""Checks names of lm-eval's tasks by searching its files, because importing lm-eval and parsing them takes half a minute."""

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from megatape.errors import UserError, flag

# Suffixes of files that define no tasks. All others are YAML, some without a suffix.
WITHOUT_NAMES = (".py", ".pyc", ".md", ".json", ".jsonl", ".txt", ".csv")
# YAML line defining or listing a task, group or tag.
DEFINED = re.compile(
    rb"""^[ \t]*(?:-[ \t]*)?["']?(?:task|group|tag)["']?:[ \t]*["']?([^\s"',\[\]{}]+)"""
    rb"""|^[ \t]*-[ \t]+["']?([^\s"',\[\]{}:]+)["']?[ \t]*$""",
    re.MULTILINE,
)


def check_names(names: Iterable[str], include: Path | None) -> None:
    """Check that each name occurs as a word in lm-eval's task files, if lm-eval is installed.

    A passing name may still not be a task; lm-eval reports that later.

    Args:
        names: Task, group or tag names.
        include: Folder with the user's own task files.

    Raises:
        UserError: No file contains one of the names.
    """
    spec = find_spec("lm_eval")
    if spec is None or spec.submodule_search_locations is None:
        return
    folders = [Path(location) / "tasks" for location in spec.submodule_search_locations]
    if include is not None:
        folders.append(include)
    file_contents = []
    for folder in folders:
        file_contents += [path.read_bytes() for path in _files(folder)]
    content = b"\n".join(file_contents)
    for name in names:
        word = re.escape(name.encode(errors="replace"))
        if not re.search(rb"(?<![\w.+-])" + word + rb"(?![\w.+-])", content):
            raise unknown_task(name, _defined_names(content))


def _defined_names(content: bytes) -> set[str]:
    """Return the task, group and tag names in YAML files."""
    names = set()
    for match in DEFINED.finditer(content):
        name = match[1] or match[2]
        names.add(name.decode(errors="replace"))
    return names


def unknown_task(name: str, known: Iterable[str]) -> UserError:
    """Return the error for a task that lm-eval does not have, suggesting similar names.

    Args:
        name: Unknown name.
        known: Names of lm-eval's tasks.
    """
    near = get_close_matches(name, list(known))
    hint = f", but {', '.join(near)}" if near else ""
    return UserError(f"{flag('tasks')}: lm-eval has no {name!r}{hint}")


def _files(folder: Path) -> Iterable[Path]:
    """Yield files that may define tasks, at any depth."""
    for directory, _, names in os.walk(folder, followlinks=True):
        for name in names:
            path = Path(directory, name)
            if path.suffix not in WITHOUT_NAMES and path.is_file():
                yield path
