"""Versions of the software that this process runs, equal on all ranks of a run."""

import hashlib
import platform
import shlex
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import megatape

PACKAGE = Path(megatape.__file__).parent
# Files of the project in a wheel. setup.py copies them.
IN_WHEEL = PACKAGE / "project"


def package_version() -> str:
    """Return the version of this package. In a clone, the commit follows."""
    # The package may only be on PYTHONPATH.
    text = "not installed"
    with suppress(PackageNotFoundError):
        text = version("megatape")
    clone = PACKAGE.parent
    if (clone / ".git").exists():
        command = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--exclude=*"]
        with suppress(OSError, subprocess.SubprocessError):
            result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
            text += f" (commit {result.stdout.strip()})"
    return text


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


def source_hash() -> str:
    """Return the sha256 of the package's Python files. It is equal on two hosts only if both run the same code."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        digest.update(name.encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def typed_command() -> str:
    """Return the command line of this process, without the words of a launcher."""
    program, *words = sys.argv
    name = program
    if Path(program).name in ("megatape", "__main__.py"):
        name = "megatape"
    typed = [word for word in words if not word.startswith("--local_rank=")]
    return shlex.join([name, *typed])


def versions() -> str:
    """Return the versions of Python, torch and DeepSpeed, separated by slashes."""
    return f"{platform.python_version()}/{version('torch')}/{version('deepspeed')}"
