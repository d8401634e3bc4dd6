"""Copies of the code and configuration of a job, so that edits after submission do not affect it."""

import hashlib
import json
import shutil
from pathlib import Path

import megatape
from megatape.config import Config, save_config

PACKAGE = Path(megatape.__file__).parent


def source_hash() -> str:
    """sha256 of the package's Python files: equal on two hosts only if both run the same code."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def config_hash(config: Config) -> str:
    """sha256 of the resolved configuration."""
    return hashlib.sha256(json.dumps(config.model_dump(), sort_keys=True).encode()).hexdigest()


def take_snapshot(folder: Path, configs: dict[str, Config]) -> None:
    """Write code/ and the resolved configurations (file name -> configuration) into a new folder. Raises OSError."""
    folder.mkdir(parents=True)
    shutil.copytree(PACKAGE, folder / "code" / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, config in configs.items():
        save_config(config, folder / name)
