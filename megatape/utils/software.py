"""Versions of the software that this process runs, equal on all ranks of a run."""

import hashlib
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from megatape.utils.project_files import PACKAGE


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


def source_hash() -> str:
    """Return the sha256 of the package's Python files. It is equal on two hosts only if both run the same code."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        digest.update(name.encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def versions() -> str:
    """Return the versions of Python, torch and DeepSpeed, separated by slashes."""
    return f"{platform.python_version()}/{version('torch')}/{version('deepspeed')}"
