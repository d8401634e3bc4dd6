"""Flat token files, without header or index."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from megatape.data.formats.token_format import TokenFormat
from megatape.errors import UserError
from megatape.utils.files.files import create_file, open_regular

# Number of ids to read at a time.
BLOCK_IDS = 2**20


class Flat(TokenFormat):
    """PATH.bin with token ids, as mapped by nanoGPT, LongLoRA and landmark attention (np.memmap(path, np.uint16)).

    The file does not record the type of its ids: uint16 for up to 65,536 ids, uint32 beyond, as in our shards. Only end tokens
    tell where documents end.
    """

    piece = "block"

    def read(self, path: Path, dtype: np.dtype) -> Iterator[np.ndarray]:
        size = path.stat().st_size
        if size % dtype.itemsize:
            raise UserError(
                f"{path}: {size:,} bytes are no whole number of {dtype.name} ids, which this tokenizer's are: it is truncated, "
                "or of another tokenizer"
            )
        with open_regular(path) as file:
            while True:
                ids = np.fromfile(file, dtype, BLOCK_IDS)
                if not ids.size:
                    return
                yield ids

    def write(self, path: Path, documents: Iterable[np.ndarray], dtype: np.dtype) -> None:
        with create_file(path.with_name(f"{path.name}.bin")) as file:
            for ids in documents:
                file.write(np.ascontiguousarray(ids, dtype).data)
