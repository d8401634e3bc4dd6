"""Arrays in .npz files."""

import zlib
from collections.abc import Mapping
from io import BytesIO
from typing import Any
from zipfile import BadZipFile

import numpy as np

# Errors that numpy.load raises for corrupted files.
CORRUPTED_ARRAYS = (ValueError, KeyError, EOFError, NotImplementedError, BadZipFile, zlib.error)


def pack_arrays(arrays: Mapping[str, Any]) -> bytes:
    """Return the content of an .npz file with these arrays."""
    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()
