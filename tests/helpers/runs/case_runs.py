"""Runs for training tests, starting ranks in separate processes."""

from pathlib import Path
from typing import Any

from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import TRAIN_CASES


def run_cases(
    config: dict[str, Any],
    cases: list[dict[str, Any]],
    num_ranks: int,
    folder: Path,
    *,
    target: str = TRAIN_CASES,
    timeout: float = 180.0,
    imports: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    """Train cases one after the other.

    Args:
        config: Base configuration.
        cases: Changes to the configuration and other settings for each case, see `train_cases`.
        num_ranks: Number of ranks training each case together.
        folder: Folder for the ranks' logs.
        target: Function "module:function" training the cases.
        timeout: Seconds on an idle machine.
        imports: See `Workers`.

    Returns:
        Result for each case on rank 0: where it started, or {"error": text}.
    """
    payload = {"config": config, "cases": cases}
    return run_workers(target, num_ranks, payload, folder, timeout, imports)[0]


def assert_no_errors(results: list[dict[str, Any]]) -> None:
    """Check that every case ended without an error."""
    errors = [result.get("error") for result in results]
    assert errors == [None] * len(results)
