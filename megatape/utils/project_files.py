"""Files of the project that a clone and an installed wheel have in different places."""

from pathlib import Path

import megatape

PACKAGE = Path(megatape.__file__).parent
# Files of the project in a wheel. setup.py copies them.
IN_WHEEL = PACKAGE / "project"


def project_file(name: str) -> Path:
    """Return the path of a file or folder of the project, in a clone or in the installed wheel.

    Args:
        name: `constraints.txt` or `configs`.
    """
    if IN_WHEEL.exists():
        return IN_WHEEL / name
    return PACKAGE.parent / name


def install_command(extra: str) -> str:
    """Return the command that installs an extra of pyproject.toml."""
    if IN_WHEEL.exists():
        return f'pip install "megatape[{extra}]"'
    return f'pip install -c constraints.txt -e ".[{extra}]"'
