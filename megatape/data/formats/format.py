"""What exchange.py needs of a format. A new one is a file with a subclass of TokenFormat and a line in TOKEN_FORMATS."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np


class TokenFormat(ABC):
    """Token ids of one split in the files of another system, of which memory holds a small part at a time.

    piece: what `read` gives. "document": a document. "sample" and "block": any number of tokens of a stream in which only end
    tokens tell where documents end; a sample may be meant as a document, a block is only what was read at a time.
    """

    piece: ClassVar[Literal["document", "sample", "block"]]

    @abstractmethod
    def read(self, path: Path, dtype: np.dtype) -> Iterator[np.ndarray]:
        """The pieces, integers of any type, in order.

        dtype: of ids where the files do not say. Raises FileNotFoundError, or UserError for files that are corrupted or not
        of this format.
        """

    @abstractmethod
    def write(self, path: Path, documents: Iterable[np.ndarray], dtype: np.dtype) -> None:
        """Write documents of this type, end tokens included. path: without the suffix of the format's files, if it has one."""
