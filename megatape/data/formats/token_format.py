"""Interface for token files of other systems.

To add a format, write a subclass of TokenFormat and its line in TOKEN_FORMATS (megatape/registry.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np


class TokenFormat(ABC):
    """Reads and writes one split's token ids, holding a small part in memory at a time.

    Attributes:
        piece: Kind of pieces that `read` yields. "document": documents. "sample" and "block": parts of a token stream in which
            only end tokens tell where documents end. A sample may be meant to be a document, a block is just a unit of reading.
    """

    piece: ClassVar[Literal["document", "sample", "block"]]

    @abstractmethod
    def read(self, path: Path, dtype: np.dtype) -> Iterator[np.ndarray]:
        """Yield the pieces in order, integers of any type.

        Args:
            path: File or folder in this format.
            dtype: Token id type, if the files do not record it.

        Raises:
            FileNotFoundError: A file is missing.
            UserError: Files are corrupted or have another format.
        """

    @abstractmethod
    def write(self, path: Path, documents: Iterable[np.ndarray], dtype: np.dtype) -> None:
        """Write documents.

        Args:
            path: Path without the format's suffix.
            documents: Each document's ids, including its end token.
            dtype: Token id type.
        """
