"""Commands and environments for Python child processes that import nothing from the current directory (search_path.py)."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from megatape import search_path
from megatape.imports import arguments, search_folders
from megatape.search_path import PACKAGE_FOLDER, SAFE_PATH, named_folders

PROGRAM = Path(PACKAGE_FOLDER, "megatape", "child.py")
_ENVIRONMENT_LOCK = threading.Lock()

# Linux-only option of prctl(2): the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1
# Shells report a process killed by signal N with exit status KILLED_BY + N.
KILLED_BY = 128
_PRCTL = ctypes.CDLL(None).prctl


def python_command(*words: str) -> list[str]:
    """Return the command that imports the user's modules and calls `main` in one of our modules.

    Args:
        words: Module name and arguments for its function `main`; or further modules, each after --import.
    """
    return [sys.executable, "-P", str(PROGRAM), *arguments(), *words]


def child_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a copy of this process's environment, with `changes`, for a child that is or starts a Python process."""
    environment = os.environ | (changes or {}) | {SAFE_PATH: "1"}
    _set_search_path(environment, search_folders())
    return environment


def launcher_environment(words: Sequence[str]) -> dict[str, str]:
    """Return the environment for a command that starts this package, by a script or by `deepspeed --module megatape`.

    If the user has exported an empty PYTHONSAFEPATH, the command keeps it: the user's script may import its neighbors.

    Args:
        words: Command and arguments. A clone's scripts find their package, but `--module megatape` needs the clone on
            PYTHONPATH if the package is not installed.
    """
    environment = child_environment()
    if search_path.KEEPS_START_FOLDERS:
        environment[SAFE_PATH] = ""
    if "megatape" in words and not _is_installed():
        _set_search_path(environment, [PACKAGE_FOLDER, *search_folders()])
    return environment


def end_with_parent(parent: int, signal_number: int = signal.SIGTERM) -> None:
    """Let this process get a signal when its parent ends in any way. It may be called between fork and exec.

    Args:
        parent: Process id of the parent.
        signal_number: The signal.
    """
    _PRCTL(PR_SET_PDEATHSIG, signal_number)
    has_ended_meanwhile = os.getppid() != parent
    if has_ended_meanwhile:
        os.kill(os.getpid(), signal_number)


def shell_status(code: int) -> int:
    """Convert an exit status of subprocess, which is negative after a signal, to that of a shell."""
    if code < 0:
        return KILLED_BY - code
    return code


@contextmanager
def safe_start() -> Iterator[None]:
    """Set PYTHONSAFEPATH for processes that multiprocessing starts inside the block."""
    with _ENVIRONMENT_LOCK:
        before = os.environ.get(SAFE_PATH)
        os.environ[SAFE_PATH] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[SAFE_PATH]
            else:
                os.environ[SAFE_PATH] = before


def _set_search_path(environment: dict[str, str], folders: list[str]) -> None:
    """Set PYTHONPATH to these folders, followed by the user's own."""
    folders = list(dict.fromkeys([*folders, *named_folders()]))
    environment.pop("PYTHONPATH", None)
    if folders:
        environment["PYTHONPATH"] = os.pathsep.join(folders)


def _is_installed() -> bool:
    """Whether a new Python process finds this package from any folder."""
    for finder in sys.meta_path:
        spec = finder.find_spec("megatape", None)
        if spec is not None:
            return spec.origin is not None and Path(spec.origin).parent == PROGRAM.parent
    return False
