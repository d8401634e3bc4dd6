"""Interface of token files of other systems.

To add a format, write a subclass of TokenFormat and a line of TOKEN_FORMATS (megatape/registry.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np


class TokenFormat(ABC):
    """Token ids of one split in the files of another system. A small part of them is in memory at a time.

    Attributes:
        piece: Pieces that `read` yields. "document": documents. "sample" and "block": any number of tokens of a stream, in
            which only end tokens tell where documents end. A sample may be meant as a document, a block is only read as one.
    """

    piece: ClassVar[Literal["document", "sample", "block"]]

    @abstractmethod
    def read(self, path: Path, dtype: np.dtype) -> Iterator[np.ndarray]:
        """Yield the pieces in order, integers of any type.

        Args:
            path: File or folder of the format.
            dtype: Type of the ids if the files do not tell it.

        Raises:
            FileNotFoundError: A file is missing.
            UserError: Files are corrupted or have another format.
        """

    @abstractmethod
    def write(self, path: Path, documents: Iterable[np.ndarray], dtype: np.dtype) -> None:
        """Write documents.

        Args:
            path: Path without the suffix of the format's files, if it has one.
            documents: Ids of each document, including its end token.
            dtype: Type of the ids.
        """
