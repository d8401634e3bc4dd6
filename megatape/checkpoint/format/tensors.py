"""Writing tensors to safetensors files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatape.checkpoint.format.hashed_files import write_file
from megatape.checkpoint.format.records import FileRecord

# Precision -> its name in safetensors files.
DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8"}


def save_tensors(tensors: dict[str, Tensor], path: Path) -> FileRecord:
    """Write CPU tensors to a safetensors file.

    The safetensors library would write the same bytes, but hashing its file means reading it again, and a change made in the
    meantime would go unnoticed. Format: https://huggingface.co/docs/safetensors, section Format.

    Args:
        tensors: Name -> tensor, all with the same precision.
        path: File to write. It must not exist.

    Returns:
        File size and hash.
    """
    ordered = dict(sorted(tensors.items()))
    return write_file(path, _parts(ordered))


def _parts(tensors: dict[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the content of a safetensors file, without copying tensors: header size, header, tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin = end
        end = begin + tensor.numel() * tensor.itemsize
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    # Pad the header, so that the tensors are aligned.
    text += b" " * (-len(text) % 8)

    yield len(text).to_bytes(8, "little")
    yield text
    for tensor in tensors.values():
        flat = tensor.contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data
