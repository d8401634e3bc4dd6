"""Reads, compares and damages the folders of runs."""

import json
from pathlib import Path

import torch
from safetensors import safe_open

from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close


def tensors(checkpoint: Path, kind: str) -> dict[str, torch.Tensor]:
    """All tensors of a kind in a checkpoint."""
    found: dict[str, torch.Tensor] = {}
    for file in checkpoint.glob(f"{kind}-*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            found |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no mapping)
    return found


def step_tensors(run: Path, kind: str, step: int) -> dict[str, torch.Tensor]:
    """All tensors of a kind in the checkpoint of a step."""
    return tensors(run / "checkpoints" / f"step-{step:08d}", kind)


def compare(plain: Path, this: Path, step: int = 3) -> None:
    """Samples, losses and gradient norms of two runs, the last validation loss, and weights and moments after `step` steps."""
    losses = ([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (plain, this))
    for expected, found in zip(*losses, strict=True):
        assert [found[field] for field in ("samples", "digest")] == [expected[field] for field in ("samples", "digest")], this
        assert found.keys() == expected.keys(), this
        for field in {"loss", "grad_norm", "validation_loss"} & found.keys():
            assert_close([found[field]], [expected[field]], bounds.TRAINED, what=(this, found["step"], field))
    for kind in ("weight", "exp_avg", "exp_avg_sq"):
        ours = step_tensors(this, kind, step)
        theirs = step_tensors(plain, kind, step)
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            # Softmax ignores FIRE's output bias: its gradient is rounding, and its weights stay within that of zero.
            floor = 1.0 if name.endswith("outer_bias") else 1e-12
            assert_close(ours[name], tensor, bounds.TRAINED, floor=floor, what=(this, kind, name))


def flip_byte(path: Path) -> None:
    """Change a byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
