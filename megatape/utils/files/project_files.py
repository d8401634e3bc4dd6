"""Project files, which have different places in a clone and in an installed wheel."""

from pathlib import Path

import megatape

PACKAGE = Path(megatape.__file__).parent
# Project files in a wheel, copied by setup.py.
IN_WHEEL = PACKAGE / "project"


def project_file(name: str) -> Path:
    """Return the path of `constraints.txt` or `configs`, in a clone or in the installed wheel."""
    if IN_WHEEL.exists():
        return IN_WHEEL / name
    return PACKAGE.parent / name


def install_command(extra: str) -> str:
    """Return the command for installing an extra of pyproject.toml."""
    if IN_WHEEL.exists():
        return f'pip install "megatape[{extra}]"'
    return f'pip install -c constraints.txt -e ".[{extra}]"'
