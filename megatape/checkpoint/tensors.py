"""Writing safetensors files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatape.checkpoint.manifest import write_file

DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8"}


def save_tensors(tensors: dict[str, Tensor], path: Path) -> dict[str, Any]:
    """Write a safetensors file of CPU tensors, all of one type; returns what `write_file` does.

    The same bytes as the library's, which can only hash a file by reading it again: whatever became of it meanwhile would count
    as what was written. Format: https://huggingface.co/docs/safetensors, section Format.
    """
    return write_file(path, _parts(dict(sorted(tensors.items()))))


def _parts(tensors: dict[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The content of the file: size of the header, header, tensors. None of them is copied."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.itemsize
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors are aligned
    yield len(text).to_bytes(8, "little")
    yield text
    for tensor in tensors.values():
        yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
