"""Reads, compares and damages run directories."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from megatape.checkpoint.load.reader import verified_checkpoint
from megatape.run_folder import RunFolder, named_step
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import Bound, assert_close

KINDS = ("weight", "exp_avg", "exp_avg_sq")  # Tensors left by AdamW in a checkpoint


def tensors(checkpoint: Path, kind: str) -> dict[str, torch.Tensor]:
    """Return one kind of tensors in a checkpoint, by parameter."""
    by_name: dict[str, torch.Tensor] = {}
    for path in checkpoint.glob(f"{kind}-*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                by_name[name] = file.get_tensor(name)
    return by_name


def step_tensors(run: Path, kind: str, step: int) -> dict[str, torch.Tensor]:
    """Return one kind of tensors in a step's checkpoint, by parameter."""
    return tensors(run / "checkpoints" / f"step-{step:08d}", kind)


def verified_tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Return all tensors in an intact checkpoint, by "kind parameter"."""
    reader = verified_checkpoint(checkpoint)
    by_name = {}
    for kind, names in reader.manifest.tensors.items():
        of_kind = tensors(checkpoint, kind)
        assert of_kind.keys() == set(names)
        for name, tensor in of_kind.items():
            by_name[f"{kind} {name}"] = tensor
    return by_name


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a JSON lines file. Every line must be valid."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def losses(run: Path) -> list[float]:
    """Return a run's training loss, step by step."""
    return [entry["loss"] for entry in read_entries(run / "metrics.jsonl")]


def comparable_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the metrics for a run's steps without those differing between equal runs (times and memory)."""
    entries = read_entries(folder.metrics)
    for entry in entries:
        for name in ("seconds", "peak_memory"):
            entry.pop(name, None)
    return entries


def num_recorded_steps(folder: RunFolder) -> int:
    """Return the number of lines in metrics.jsonl, 0 if there is no such file yet."""
    if not folder.metrics.exists():
        return 0
    return len(folder.metrics.read_bytes().splitlines())


def saved_steps(folder: RunFolder) -> list[int]:
    """Return the steps of all checkpoints in a run directory, newest first."""
    return [named_step(checkpoint) for checkpoint in folder.list_checkpoints()]


def assert_identical(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], what: object = "") -> None:
    """Check that two groups of tensors have the same names and the same bits, and are not empty."""
    assert expected, what
    assert actual.keys() == expected.keys(), what
    different = [name for name, tensor in expected.items() if not torch.equal(actual[name], tensor)]
    assert different == [], what


def assert_all_close(
    actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], bound: Bound, what: object = "", floor: float = 1e-12
) -> None:
    """Check that two groups of tensors have the same names, are not empty, and differ within a bound."""
    assert expected, what
    assert actual.keys() == expected.keys(), what
    for name, tensor in expected.items():
        assert_close(actual[name], tensor, bound, floor=floor, what=(what, name))


def compare(plain: Path, run: Path, step: int = 3) -> None:
    """Hold a run to another one: samples, losses, gradient norms and the last validation loss, then weights and moments.

    Args:
        plain: Folder of the run having the expected numbers.
        run: Folder of the other run.
        step: Step whose checkpoints are compared.
    """
    expected_entries = read_entries(plain / "metrics.jsonl")
    entries = read_entries(run / "metrics.jsonl")
    for expected, entry in zip(expected_entries, entries, strict=True):
        for field in ("samples", "digest"):
            assert entry[field] == expected[field], run
        assert entry.keys() == expected.keys(), run
        for field in {"loss", "grad_norm", "validation_loss"} & entry.keys():
            assert_close([entry[field]], [expected[field]], bounds.TRAINED, what=(run, entry["step"], field))

    for kind in KINDS:
        actual = step_tensors(run, kind, step)
        plain_tensors = step_tensors(plain, kind, step)
        assert actual.keys() == plain_tensors.keys()
        for name, tensor in plain_tensors.items():
            # Softmax ignores FIRE's output bias: its gradient is rounding, and its weights stay within that of zero.
            floor = 1.0 if name.endswith("outer_bias") else 1e-12
            assert_close(actual[name], tensor, bounds.TRAINED, floor=floor, what=(run, kind, name))


def flip_byte(path: Path) -> None:
    """Flip bits in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
