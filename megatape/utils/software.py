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
IN_WHEEL = PACKAGE / "project"  # made by setup.py


def package_version() -> str:
    """The version of this package, with the commit where it is a checkout."""
    text = "not installed"  # but on PYTHONPATH
    with suppress(PackageNotFoundError):
        text = version("megatape")
    git = ["git", "-C", str(PACKAGE.parent), "describe", "--always", "--dirty", "--exclude=*"]
    if (PACKAGE.parent / ".git").exists():
        with suppress(OSError, subprocess.SubprocessError):
            text += f" (commit {subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()})"
    return text


def project_file(name: str) -> Path:
    """The path of constraints.txt or configs: of a clone, or of the copy that a wheel has."""
    return (IN_WHEEL if IN_WHEEL.exists() else PACKAGE.parent) / name


def install_command(extra: str) -> str:
    """What to type for an extra of pyproject.toml."""
    return f'pip install "megatape[{extra}]"' if IN_WHEEL.exists() else f'pip install -c constraints.txt -e ".[{extra}]"'


def source_hash() -> str:
    """sha256 of the package's Python files: equal on two hosts only if both run the same code."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def typed_command() -> str:
    """The command line of this process, without what a launcher put before it or added to it."""
    program, *words = sys.argv
    name = "megatape" if Path(program).name in ("megatape", "__main__.py") else program
    return shlex.join([name, *(word for word in words if not word.startswith("--local_rank="))])


def versions() -> str:
    """Python / torch / DeepSpeed."""
    return f"{platform.python_version()}/{version('torch')}/{version('deepspeed')}"
