"""One file of token ids and nothing else, as nanoGPT, LongLoRA and landmark attention map it: np.memmap(path, np.uint16).

The file says neither the type of its ids, uint16 up to 65,536 tokens and uint32 beyond as in our shards, nor where documents
end, which their end tokens do.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from megatape.data.formats.format import TokenFormat
from megatape.errors import UserError
from megatape.files import open_regular

BLOCK_IDS = 2**20


class Flat(TokenFormat):
    """PATH.bin."""

    piece = "block"

    def read(self, path: Path, dtype: np.dtype) -> Iterator[np.ndarray]:
        size = path.stat().st_size
        if size % dtype.itemsize:
            raise UserError(
                f"{path}: {size:,} bytes are no whole number of {dtype.name} ids, which this tokenizer's are: it is truncated, "
                "or of another tokenizer"
            )
        with open_regular(path) as file:
            while (ids := np.fromfile(file, dtype, BLOCK_IDS)).size:
                yield ids

    def write(self, path: Path, documents: Iterable[np.ndarray], dtype: np.dtype) -> None:
        with path.with_name(f"{path.name}.bin").open("wb") as file:
            for ids in documents:
                file.write(np.ascontiguousarray(ids, dtype).data)
