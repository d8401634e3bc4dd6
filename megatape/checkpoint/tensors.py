"""Writing safetensors files."""

import os
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file that whoever may read the folder's other files can read.

    The library makes it readable by its owner alone, whatever the umask."""
    save_file(tensors, path, metadata={"format": "pt"})
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)
