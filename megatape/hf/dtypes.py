"""Precisions of exported weights, and their names."""

from typing import cast

import torch

from megatape.config import ExportConfig, TrainingConfig
from megatape.config.sections.run import Dtype

# Name in safetensors files -> precision, for all supported precisions.
SAFETENSORS_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def stored_dtype(export: ExportConfig, training: TrainingConfig) -> torch.dtype:
    """Return the precision of a run's exported weights: `export.dtype` if it is set, or else the training precision."""
    return dtype_named(export.dtype or training.precision)


def dtype_named(name: Dtype) -> torch.dtype:
    """Return the precision with a given name in configurations and records."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def dtype_name(dtype: torch.dtype) -> Dtype:
    """Return the name of a precision in configurations and records."""
    return cast(Dtype, str(dtype).removeprefix("torch."))
