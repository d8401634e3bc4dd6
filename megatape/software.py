"""Versions of this process's software, which must be equal on all ranks."""

import hashlib
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from megatape.utils.files.project_files import PACKAGE


def package_version() -> str:
    """Return this package's version, with the commit if it is a clone."""
    # The package may be on PYTHONPATH without being installed.
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
    """Return the sha256 of all Python files in the package, for checking that hosts run the same code."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        digest.update(name.encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def versions() -> str:
    """Return the versions of Python, torch and DeepSpeed, joined by slashes."""
    return f"{platform.python_version()}/{version('torch')}/{version('deepspeed')}"
