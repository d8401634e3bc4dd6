"""Weights as sharded safetensors, one shard in memory at a time."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from megatape.checkpoint.tensors import save_tensors
from megatape.errors import UserError

SHARD_BYTES = 2 * 2**30  # what the exporting process holds at once


def plan_shards(shapes: dict[str, torch.Size], dtype: torch.dtype, limit: int) -> list[list[str]]:
    """Group parameters, in order of their layers, into shards of at most `limit` bytes; a larger tensor gets its own."""
    shards: list[list[str]] = []
    room = 0
    for name in sorted(shapes, key=_natural):
        size = shapes[name].numel() * dtype.itemsize
        if not shards or size > room:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= size
    return shards


def write_weights(
    directory: Path,
    shapes: dict[str, torch.Size],
    dtype: torch.dtype,
    read: Callable[[str], Tensor],
    rename: Callable[[str], str],
) -> None:
    """Write model.safetensors, or several shards and their index, as transformers reads them.

    shapes: of every parameter under our names; read: gives one of them; rename: gives its name in the files. Raises
    UserError if a parameter read has another shape, or values beyond the range of `dtype`.
    """
    shards = plan_shards(shapes, dtype, SHARD_BYTES)
    index: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        # No name holds the tensors: they are freed before the next shard is read.
        save_tensors({rename(name): checked(name, read(name), shapes[name], dtype) for name in names}, directory / file)
        index |= dict.fromkeys(map(rename, names), file)
    if len(shards) > 1:
        total = sum(shape.numel() for shape in shapes.values()) * dtype.itemsize
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2)
        (directory / "model.safetensors.index.json").write_text(text + "\n", encoding="utf-8")


def checked(name: str, tensor: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """`tensor` as it is stored. Raises UserError if it has another shape, or values beyond the range of `dtype`."""
    if tensor.shape != shape:
        raise UserError(
            f"{name} has shape {tuple(tensor.shape)} in the checkpoint, but its configuration says {tuple(shape)}: "
            "the checkpoint is corrupted, use another one"
        )
    stored = tensor.to(dtype).contiguous()
    if not stored.isfinite().all():
        raise UserError(f"{name} has values that {dtype} cannot hold: export with another `dtype`")
    return stored


def _natural(name: str) -> list[int | str]:
    """Sort key that puts blocks.2 before blocks.10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
