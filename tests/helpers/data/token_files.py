"""Token files written by other systems, and the command importing them."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.helpers.processes.workers import ROOT

# Files that Megatron-LM, MosaicML streaming and llm-foundry wrote from DOCUMENTS
TOKEN_FILES = ROOT / "tests/data/formats/token_files"
DOCUMENTS = [np.array([1, *range(3, 3 + length), 2]) for length in (5, 0, 300, 70)]
STREAM = np.concatenate(DOCUMENTS)
IDS = np.dtype("<u2")


class CommandResult(NamedTuple):
    """A command's exit status and printed text."""

    status: int
    output: str
    errors: str


Import = Callable[..., CommandResult]


def overwrite(path: Path, offset: int, content: bytes) -> None:
    """Overwrite some bytes in a file."""
    changed = bytearray(path.read_bytes())
    changed[offset : offset + len(content)] = content
    path.write_bytes(changed)
