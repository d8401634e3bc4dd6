"""Weight files of an export: model.safetensors, or shards of limited size and their index.

huggingface_hub plans the shards. Its save_torch_state_dict is not used, because it needs the whole model in memory, and
`write_weights` only one shard.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from megatape.checkpoint.tensors import save_tensors
from megatape.errors import UserError
from megatape.hf.weights.tensor_headers import INDEX

# Maximum size of a shard, unless a single tensor is larger: the memory of the exporting process.
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
        shapes: Parameter -> shape, by MegaTAPE's names.
        dtype: Precision to store.
        read: Reads a parameter.
        rename: Returns the name of a parameter in the files.
        shard_bytes: Maximum size of a shard with several tensors.

    Raises:
        UserError: A parameter has another shape than `shapes` says, or values beyond the range of `dtype`.
    """
    # Training reads weights, and runs without huggingface_hub.
    from huggingface_hub import split_state_dict_into_shards_factory

    sizes = {name: math.prod(shape) * dtype.itemsize for name, shape in shapes.items()}
    plan = split_state_dict_into_shards_factory(
        sizes, get_storage_size=int, filename_pattern="model{suffix}.safetensors", max_shard_size=shard_bytes
    )
    for file, names in plan.filename_to_tensors.items():
        # The tensors have no name here, so that they are freed before those of the next shard are read.
        save_tensors({rename(name): checked(name, read(name), shapes[name], dtype) for name in names}, directory / file)

    if plan.is_sharded:
        weight_map = {rename(name): file for name, file in plan.tensor_to_filename.items()}
        index = json.dumps({"metadata": plan.metadata, "weight_map": weight_map}, indent=2)
        (directory / INDEX).write_text(index + "\n", encoding="utf-8")


def checked(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Convert a parameter to the precision of an export.

    Args:
        name: Name of the parameter, for messages.
        tensor: Value of the parameter.
        shape: Expected shape.
        dtype: Precision of the export.

    Raises:
        UserError: The parameter has another shape, or values beyond the range of `dtype`.
    """
    if tensor.shape != shape:
        raise UserError(
            f"{name} has shape {tuple(tensor.shape)} in the checkpoint, but its configuration says {shape}: "
            "the checkpoint is corrupted, use another one"
        )
    stored = tensor.to(dtype).contiguous()
    if not stored.isfinite().all():
        raise UserError(f"{name} has values that {dtype} cannot hold: export with another `dtype`")
    return stored
