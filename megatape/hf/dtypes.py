"""Precisions of exported weights, and their names."""

from typing import cast

import torch

from megatape.config import Config
from megatape.config.run import Dtype

# Name of a precision in safetensors files -> precision, for those that we read.
SAFETENSORS_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def stored_dtype(config: Config) -> torch.dtype:
    """Return the precision in which the weights of a run are exported."""
    return dtype_named(config.export.dtype or config.training.precision)


def dtype_named(name: Dtype) -> torch.dtype:
    """Return the precision with this name in configurations and records."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def dtype_name(dtype: torch.dtype) -> Dtype:
    """Return the name of a precision in configurations and records."""
    return cast(Dtype, str(dtype).removeprefix("torch."))
