"""Whether a run that was disturbed is the one that was not."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from megatape.checkpoint.manifest import STATE
from megatape.checkpoint.partial_folder import PARTIAL
from megatape.checkpoint.reader import CheckpointReader, verified_checkpoint
from megatape.commands.cli.main import main
from megatape.run_folder import RunFolder, read_metrics
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_within, relative_difference
from tests.soak.launch import Failure

MEASURED = ("seconds", "peak_memory")  # of metrics.jsonl, which no two runs have in common
# Metrics that other numbers of ranks round differently.
ROUNDED = ("loss", "grad_norm", "validation_loss", "ema_validation_loss", "validation_losses")


def compare(run: RunFolder, undisturbed: RunFolder, fixed: bool, all_views: bool) -> dict[str, float]:
    """Raise Failure unless the run has the ledger, the metrics and the weights of the undisturbed one.

    fixed: it had the same ranks at all times, so that all is equal bit for bit; otherwise losses differ by rounding, whose
    relative differences are returned by name. all_views: no view of the positions can have been lost to a full disk."""
    ledgers = [_ledger(folder.directory) for folder in (run, undisturbed)]
    if ledgers[0] != ledgers[1]:
        raise Failure(f"megatape ledger of the run:\n{ledgers[0]}\nof the undisturbed run:\n{ledgers[1]}")
    differences = _compare_metrics(_entries(run), _entries(undisturbed), fixed)
    _compare_checkpoints(run.list_checkpoints()[0], undisturbed.list_checkpoints()[0], fixed)
    if fixed:
        _compare_views(run, undisturbed, all_views)
    left = [path.name for path in run.checkpoints.glob(f"*{PARTIAL}")] + [run.lease.name] * run.lease.exists()
    if left:
        raise Failure(f"a complete run has left {left}")
    return differences


def _ledger(directory: Path) -> str:
    """What `megatape ledger` prints."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        status = main(["ledger", str(directory)])
    if status:
        raise Failure(f"megatape ledger {directory}: status {status}\n{output.getvalue()}")
    return output.getvalue()


def _entries(folder: RunFolder) -> dict[int, dict[str, Any]]:
    """Step -> its metrics."""
    return {step: json.loads(line) for step, line in read_metrics(folder.metrics).items()}


def _compare_metrics(found: dict[int, Any], expected: dict[int, Any], fixed: bool) -> dict[str, float]:
    if list(found) != list(expected):
        raise Failure(f"steps of metrics.jsonl: {list(found)}, undisturbed {list(expected)}")
    rounded = () if fixed else ROUNDED
    for step, other in expected.items():
        one = found[step]
        exact = [{name: value for name, value in entry.items() if name not in (*MEASURED, *rounded)} for entry in (one, other)]
        if exact[0] != exact[1]:
            raise Failure(f"metrics of step {step}: {exact[0]}, undisturbed {exact[1]}")
    differences = {}
    for name in rounded:
        steps, measured = (_with_numbers(entries, name) for entries in (expected, found))
        if steps != measured:
            raise Failure(f"steps with {name}: {measured}, undisturbed {steps}")
        if not steps:
            continue
        ours, theirs = (torch.tensor([_numbers(entries[step][name]) for step in steps]) for entries in (found, expected))
        differences[name] = relative_difference(ours, theirs)
        try:
            assert_within(differences[name], bounds.SOAK, name)
        except AssertionError as error:
            raise Failure(f"{error}\n{ours}\nundisturbed:\n{theirs}") from None
    return differences


def _with_numbers(entries: dict[int, Any], name: str) -> list[int]:
    """Return the steps that have a value of the field."""
    return [step for step, entry in entries.items() if entry.get(name) is not None]


def _numbers(value: float | dict[str, float]) -> list[float]:
    """Return the numbers of a field: one, or one for each corpus."""
    return list(value.values()) if isinstance(value, dict) else [value]


def _compare_checkpoints(path: Path, undisturbed: Path, fixed: bool) -> None:
    try:
        one = verified_checkpoint(path)
        other = CheckpointReader(undisturbed)
    except ValueError as error:
        raise Failure(f"the last checkpoint of the run: {error}") from error
    if one.step != other.step:
        raise Failure(f"the last checkpoint is {path.name}, undisturbed {undisturbed.name}")
    if not fixed:
        return
    for name, entry in other.manifest.files.items():
        if name != STATE and one.manifest.files.get(name) != entry:
            raise Failure(f"{path / name} has other bytes than that of the undisturbed run")
    states = [reader.state.content() | {"config": None} for reader in (one, other)]
    if states[0] != states[1]:
        raise Failure(f"{path / STATE}: {states[0]}, undisturbed {states[1]}")


def _compare_views(run: RunFolder, undisturbed: RunFolder, all_views: bool) -> None:
    found = run.list_position_views()
    expected = undisturbed.list_position_views()
    if list(found) != list(expected) and (all_views or not found.keys() < expected.keys()):
        raise Failure(f"position views of steps {list(found)}, undisturbed {list(expected)}")
    for step, path in found.items():
        if path.read_bytes() != expected[step].read_bytes():
            raise Failure(f"{path} has other bytes than that of the undisturbed run")
