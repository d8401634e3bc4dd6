"""Folder with planted files named like modules, as an attacker may put them next to a model."""

import os
from pathlib import Path

MODULES = ("argparse", "json", "logging", "multiprocessing", "pickle", "pyarrow", "torch")
RAN = "ran.txt"


def plant(folder: Path) -> None:
    """Write files recording their names in `RAN` when they run.

    Args:
        folder: Folder to write to, created if needed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for module in MODULES:
        code = f"open({str(folder / RAN)!r}, 'a').write('{module} ')\nraise RuntimeError('planted {module}.py')\n"
        (folder / f"{module}.py").write_text(code)


def planted_that_ran(folder: Path) -> str:
    """Return the names of all planted modules that ran."""
    file = folder / RAN
    if not file.exists():
        return ""
    return file.read_text()


def fresh_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment as a user has it, without the variables protecting Python's search path."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    return environment | changes
