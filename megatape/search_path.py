"""Module search path of a command.

Python begins sys.path with the current directory (`python -m`) or with the folder of the script. A command often runs in a
folder with untrusted files, such as a downloaded model, where a file json.py would run instead of Python's own.

This module only imports modules that Python loads before it first reads sys.path.
"""

import os
import sys

SAFE_PATH = "PYTHONSAFEPATH"  # environment variable that keeps new Python processes from adding either folder
# Whether the user keeps both folders for scripts of their own, by exporting an empty PYTHONSAFEPATH.
KEEPS_START_FOLDERS = os.environ.get(SAFE_PATH) == ""
PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # contains megatape/


def named_folders() -> list[str]:
    """Return the folders that the user has put on PYTHONPATH.

    Empty entries, as after `PYTHONPATH=$PYTHONPATH:FOLDER`, are skipped. Python reads them as the current directory, which
    users hardly mean. On several hosts, the `deepspeed` command puts the current directory first, which is skipped as well.
    """
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    is_on_several_hosts = os.environ.get("CROSS_SIZE", "1") != "1"
    if is_on_several_hosts and folders[0] == _current_directory():
        del folders[0]
    return [folder for folder in folders if folder]


def drop_start_folders() -> None:
    """Remove the current directory and the script's folder from the beginning of sys.path, also for child processes.

    Folders on the user's PYTHONPATH stay. Programs call this before importing other modules. The package itself may come from a
    dropped folder, because it finds its own modules without sys.path.
    """
    current = _current_directory()
    script = os.path.join(current, sys.argv[0])
    dropped = {"", current, PACKAGE_FOLDER, os.path.dirname(script), os.path.dirname(os.path.realpath(script))}
    named = named_folders()
    dropped -= {os.path.normpath(os.path.join(current, folder)) for folder in named}
    # Keep the rest of sys.path: it belongs to the installation, and an editable one may name the current directory.
    num_first = 3 + os.environ.get("PYTHONPATH", "").count(os.pathsep)
    first = [folder for folder in sys.path[:num_first] if folder not in dropped]
    sys.path[:num_first] = first
    os.environ[SAFE_PATH] = "1"
    if named:
        os.environ["PYTHONPATH"] = os.pathsep.join(named)
    else:
        os.environ.pop("PYTHONPATH", None)


def _current_directory() -> str:
    """Return the current directory, or "" if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""
