"""Writes an export's weight files: model.safetensors, or size-limited shards and their index.

huggingface_hub plans the shards. Its save_torch_state_dict needs the whole model in memory, `write_weights` only one shard.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from megatape.checkpoint.format.tensors import save_tensors
from megatape.errors import UserError, flag
from megatape.hf.weights.tensor_headers import INDEX

# Maximum size of a shard with several tensors. It determines how much memory an export needs.
SHARD_BYTES = 2 * 2**30


def write_weights(
    directory: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    read: Callable[[str], Tensor],
    rename: Callable[[str], str],
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write model.safetensors, or several shards and their index.

    Args:
        directory: Existing folder.
        shapes: MegaTAPE's parameter name -> shape.
        dtype: Precision of the stored weights.
        read: Function that reads a parameter, given its name.
        rename: Function that returns a parameter's name in the files.
        shard_bytes: Maximum size of a shard with several tensors.

    Raises:
        UserError: A parameter has an unexpected shape, or values out of range for `dtype`.
    """
    # Import huggingface_hub here, because training imports this module and runs without it.
    from huggingface_hub import split_state_dict_into_shards_factory

    sizes = {name: math.prod(shape) * dtype.itemsize for name, shape in shapes.items()}
    plan = split_state_dict_into_shards_factory(
        sizes, get_storage_size=int, filename_pattern="model{suffix}.safetensors", max_shard_size=shard_bytes
    )
    for file, names in plan.filename_to_tensors.items():
        # Do not assign the tensors to a variable: it would keep them in memory while the next shard is read.
        save_tensors({rename(name): checked(name, read(name), shapes[name], dtype) for name in names}, directory / file)

    if plan.is_sharded:
        weight_map = {rename(name): file for name, file in plan.tensor_to_filename.items()}
        index = json.dumps({"metadata": plan.metadata, "weight_map": weight_map}, indent=2)
        (directory / INDEX).write_text(index + "\n", encoding="utf-8")


def checked(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Convert a parameter to the precision of an export.

    Args:
        name: Parameter name, for messages.
        tensor: Value of the parameter.
        shape: Expected shape.
        dtype: Precision of the export.

    Raises:
        UserError: The parameter has another shape, or values out of range for `dtype`.
    """
    if tensor.shape != shape:
        raise UserError(
            f"{name} has shape {tuple(tensor.shape)} in the checkpoint, but its configuration says {shape}: "
            "the checkpoint is corrupted, use another one"
        )
    stored = tensor.to(dtype).contiguous()
    if not stored.isfinite().all():
        raise UserError(f"{name} has values that {dtype} cannot hold: export with another {flag('dtype')}")
    return stored
