"""Files of an exported adapter in peft's format, and the record about its base."""

import hashlib
from typing import Literal

import torch
from torch import Tensor

from megatape.config import Section
from megatape.config.sections.run import Dtype
from megatape.hf.weights.weight_files import checked

# Prefix of every name in peft's files.
PREFIX = "base_model.model."
# Files of an adapter: weights, settings, and the record of its base.
WEIGHTS = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"
BASE = "base.json"
# Our name of an adapter matrix -> its name in peft.
MATRICES = {"a": "lora_A", "b": "lora_B"}


class AdapterBase(Section):
    """Content of base.json: record about the base model that an adapter belongs to.

    Attributes:
        format: Version of the file.
        trained_from: training.init_from of the run.
        dtype: Precision of the hashed weights.
        sha256: Name in transformers -> hash, for every frozen weight.
    """

    format: Literal[1]
    trained_from: str | None
    dtype: Dtype
    sha256: dict[str, str]


def hash_of(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """Return the sha256 of a weight as stored in an export with a given precision. Same arguments and errors as `checked`."""
    stored = checked(name, tensor, shape, dtype)
    content = stored.reshape(-1).view(torch.uint8).numpy().data
    return hashlib.sha256(content).hexdigest()
