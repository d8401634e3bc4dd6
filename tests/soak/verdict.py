"""Comparing a disturbed run with an undisturbed one."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from megatape.checkpoint.format.manifest import STATE
from megatape.checkpoint.load.reader import CheckpointReader, verified_checkpoint
from megatape.checkpoint.save.partial_folder import PARTIAL
from megatape.commands.cli.main import main
from megatape.run_folder import RunFolder, read_metrics
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_within, relative_difference
from tests.soak.launch import Failure

MEASURED = ("seconds", "peak_memory")  # Metrics differing between any two runs
# Metrics rounding differently on other numbers of ranks
ROUNDED = ("loss", "grad_norm", "validation_loss", "ema_validation_loss", "validation_losses")


def compare(run: RunFolder, undisturbed: RunFolder, fixed: bool, all_views: bool) -> dict[str, float]:
    """Raise Failure unless the run has the same ledger, metrics and weights as the undisturbed one.

    Args:
        run: The disturbed run's directory.
        undisturbed: The other run's directory.
        fixed: Whether the run had the same ranks at all times, so that everything is equal bit for bit. Otherwise losses
            differ by rounding.
        all_views: Whether no position view can have been lost to a full disk.

    Returns:
        Relative differences between rounded metrics by name, none if the ranks were fixed.
    """
    ledger = _ledger(run.directory)
    expected_ledger = _ledger(undisturbed.directory)
    if ledger != expected_ledger:
        raise Failure(f"megatape ledger of the run:\n{ledger}\nof the undisturbed run:\n{expected_ledger}")
    differences = _compare_metrics(_entries(run), _entries(undisturbed), fixed)
    _compare_checkpoints(run.list_checkpoints()[0], undisturbed.list_checkpoints()[0], fixed)
    if fixed:
        _compare_views(run, undisturbed, all_views)
    left = [path.name for path in run.checkpoints.glob(f"*{PARTIAL}")]
    if run.lease.exists():
        left.append(run.lease.name)
    if left:
        raise Failure(f"a complete run has left {left}")
    return differences


def _ledger(directory: Path) -> str:
    """Return what `megatape ledger` prints."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        status = main(["ledger", str(directory)])
    if status:
        raise Failure(f"megatape ledger {directory}: status {status}\n{output.getvalue()}")
    return output.getvalue()


def _entries(folder: RunFolder) -> dict[int, dict[str, Any]]:
    """Return the metrics by step."""
    return {step: json.loads(line) for step, line in read_metrics(folder.metrics).items()}


def _compare_metrics(metrics: dict[int, Any], expected: dict[int, Any], fixed: bool) -> dict[str, float]:
    if list(metrics) != list(expected):
        raise Failure(f"steps of metrics.jsonl: {list(metrics)}, undisturbed {list(expected)}")
    rounded: tuple[str, ...] = ROUNDED
    if fixed:
        rounded = ()
    ignored = (*MEASURED, *rounded)
    for step, expected_entry in expected.items():
        exact = _without(metrics[step], ignored)
        expected_exact = _without(expected_entry, ignored)
        if exact != expected_exact:
            raise Failure(f"metrics of step {step}: {exact}, undisturbed {expected_exact}")
    differences = {}
    for name in rounded:
        steps = _with_numbers(metrics, name)
        expected_steps = _with_numbers(expected, name)
        if steps != expected_steps:
            raise Failure(f"steps with {name}: {steps}, undisturbed {expected_steps}")
        if steps:
            numbers = torch.tensor([_numbers(metrics[step][name]) for step in steps])
            expected_numbers = torch.tensor([_numbers(expected[step][name]) for step in steps])
            differences[name] = _rounding(name, numbers, expected_numbers)
    return differences


def _without(entry: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in names}


def _rounding(name: str, numbers: torch.Tensor, expected: torch.Tensor) -> float:
    """Return a metric's relative difference. Raises Failure if it exceeds the bound."""
    difference = relative_difference(numbers, expected)
    try:
        assert_within(difference, bounds.SOAK, name)
    except AssertionError as error:
        raise Failure(f"{error}\n{numbers}\nundisturbed:\n{expected}") from None
    return difference


def _with_numbers(entries: dict[int, Any], name: str) -> list[int]:
    """Return the steps having a value for the field."""
    return [step for step, entry in entries.items() if entry.get(name) is not None]


def _numbers(value: float | dict[str, float]) -> list[float]:
    """Return the numbers in a field: one, or one for each corpus."""
    if isinstance(value, dict):
        return list(value.values())
    return [value]


def _compare_checkpoints(path: Path, undisturbed: Path, fixed: bool) -> None:
    try:
        reader = verified_checkpoint(path)
        expected = CheckpointReader(undisturbed)
    except ValueError as error:
        raise Failure(f"the last checkpoint of the run: {error}") from error
    if reader.step != expected.step:
        raise Failure(f"the last checkpoint is {path.name}, undisturbed {undisturbed.name}")
    if not fixed:
        return
    for name, entry in expected.manifest.files.items():
        if name != STATE and reader.manifest.files.get(name) != entry:
            raise Failure(f"{path / name} has other bytes than that of the undisturbed run")
    state = reader.state.content() | {"config": None}
    expected_state = expected.state.content() | {"config": None}
    if state != expected_state:
        raise Failure(f"{path / STATE}: {state}, undisturbed {expected_state}")


def _compare_views(run: RunFolder, undisturbed: RunFolder, all_views: bool) -> None:
    views = run.list_position_views()
    expected = undisturbed.list_position_views()
    is_complete = views.keys() == expected.keys()
    may_lack_views = not all_views and views.keys() < expected.keys()
    if not is_complete and not may_lack_views:
        raise Failure(f"position views of steps {list(views)}, undisturbed {list(expected)}")
    for step, path in views.items():
        if path.read_bytes() != expected[step].read_bytes():
            raise Failure(f"{path} has other bytes than that of the undisturbed run")
