"""Copies of the code and configuration of a job, so that edits after submission do not affect it."""

import hashlib
import json
import shutil
from pathlib import Path

from megatape import imports
from megatape.config import Config, save_config, shared_values
from megatape.runtime.software import PACKAGE

IMPORTS = "imports"


def config_hash(config: Config) -> str:
    """sha256 of the values of the resolved configuration on which all ranks must agree."""
    return hashlib.sha256(json.dumps(shared_values(config), sort_keys=True).encode()).hexdigest()


def take_snapshot(folder: Path, configs: dict[str, Config]) -> None:
    """Write code/, imports/ (files that --import gave) and the resolved configurations (by file name) into a new folder.

    Raises:
        OSError: Something cannot be read or written.
    """
    folder.mkdir(parents=True)
    shutil.copytree(PACKAGE, folder / "code" / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in imports.files():
        (folder / IMPORTS).mkdir(exist_ok=True)
        shutil.copy(file, folder / IMPORTS)
    for name, config in configs.items():
        save_config(config, folder / name)
