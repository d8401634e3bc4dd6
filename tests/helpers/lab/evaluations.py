"""Evaluating perplexity and passkeys by the command."""

from collections.abc import Callable
from pathlib import Path

Evaluate = Callable[..., tuple[int, str, str]]

# Settings for perplexity
LENGTHS = ("--lengths", "32,64", "--max-tokens", "1500", "--mode", "sliding", "--stride", "4")
QUICK = ("--lengths", "32", "--max-tokens", "500")
# Settings for passkey
GRID = ("--protocol", "grid", "--trials", 1)


def content(folder: Path) -> dict[str, bytes]:
    """Return an evaluation's files, without pictures."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".png"}


def assert_evaluated(result: tuple[int, str, str]) -> None:
    """Check a command's result (status, output, errors)."""
    status, _, errors = result
    assert status == 0, errors


def both_tasks(data: Path, out: Path, *models: Path) -> tuple[object, ...]:
    """Return a command line evaluating perplexity and passkey with one value of `--lengths`."""
    settings = ("--max-tokens", 500, *GRID, "--lengths", 64)
    return ("evaluate", "perplexity,passkey", *models, "--data", data, *settings, "--output", out)


def interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt, replacing a task's `run`."""
    raise KeyboardInterrupt
