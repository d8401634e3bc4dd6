"""Corrupting a run's checkpoints and metrics.jsonl between two starts."""

import random
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from megatape.checkpoint.format.manifest import MANIFEST
from megatape.run_folder import RunFolder, named_step


def corrupt(kind: str, folder: RunFolder, valid: list[Path], draw: random.Random) -> tuple[str, set[str]]:
    """Corrupt some files in a run directory.

    Args:
        kind: Kind of corruption, a key of CHECKPOINTS, COPIES or LINES. Any other does nothing.
        folder: Run directory.
        valid: Valid checkpoints, newest first. At least one of them stays valid.
        draw: Random number generator.

    Returns:
        Description of what was hit, and the names of checkpoints no longer valid.
    """
    if kind in CHECKPOINTS:
        hits = []
        names = set()
        for checkpoint in valid[: draw.randint(1, 2)][: len(valid) - 1]:
            hit = CHECKPOINTS[kind](checkpoint, draw)
            hits.append(f"{checkpoint.name}: {hit}")
            names.add(checkpoint.name)
        if not hits:
            return "no checkpoint to corrupt", names
        return ", ".join(hits), names
    if kind in COPIES:
        if not valid:
            return "no checkpoint to copy", set()
        copy = COPIES[kind](valid[0], draw)
        return copy.name, {copy.name}
    if kind in LINES:
        if not folder.metrics.exists():
            return "no metrics yet", set()
        with folder.metrics.open("ab") as file:
            file.write(LINES[kind])
        return folder.metrics.name, set()
    return "", set()


def _a_file(checkpoint: Path, draw: random.Random) -> Path:
    return draw.choice(sorted(path for path in checkpoint.iterdir() if path.name != MANIFEST))


def _flip(checkpoint: Path, draw: random.Random) -> str:
    path = _a_file(checkpoint, draw)
    content = bytearray(path.read_bytes())
    place = draw.randrange(len(content))
    content[place] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return f"a bit of byte {place} of {path.name}"


def _truncate(checkpoint: Path, draw: random.Random) -> str:
    path = _a_file(checkpoint, draw)
    size = draw.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.truncate(size)
    return f"{path.name} truncated to {size} bytes"


def _remove(checkpoint: Path, draw: random.Random) -> str:
    path = _a_file(checkpoint, draw)
    path.unlink()
    return f"{path.name} removed"


def _remove_manifest(checkpoint: Path, draw: random.Random) -> str:
    (checkpoint / MANIFEST).unlink()
    return f"{MANIFEST} removed"


def _later(checkpoint: Path) -> Path:
    """Return a path for a later step's checkpoint, where nothing exists."""
    step = named_step(checkpoint)
    while True:
        step += 1
        later = checkpoint.with_name(f"step-{step:08d}")
        if not later.exists():
            return later


def _half_a_copy(checkpoint: Path, draw: random.Random) -> Path:
    """Copy some files under a later step's name, like an interrupted copy."""
    files = sorted(checkpoint.iterdir())
    copy = _later(checkpoint)
    copy.mkdir()
    for path in draw.sample(files, draw.randrange(len(files))):
        shutil.copy(path, copy)
    return copy


def _copy_of_another_step(checkpoint: Path, draw: random.Random) -> Path:
    return Path(shutil.copytree(checkpoint, _later(checkpoint)))


def _partial_folder(checkpoint: Path, draw: random.Random) -> Path:
    """Leave the partial checkpoint of a run killed while saving on another host."""
    copy = _half_a_copy(checkpoint, draw)
    return copy.rename(copy.with_name(f"{copy.name}.{secrets.token_hex(8)}.tmp"))


CHECKPOINTS: dict[str, Callable[[Path, random.Random], str]] = {
    "flipped bit": _flip,
    "truncated file": _truncate,
    "missing file": _remove,
    "missing manifest": _remove_manifest,
}
COPIES: dict[str, Callable[[Path, random.Random], Path]] = {
    "half a copy": _half_a_copy,
    "copy of another step": _copy_of_another_step,
    "partial folder": _partial_folder,
}
LINES = {"torn line": b'{"step": 7, "loss": 5.', "binary line": b'\xff\xfe\x00{"step": 3\n'}
