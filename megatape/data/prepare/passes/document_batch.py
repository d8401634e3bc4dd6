"""Batch of tokenized documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from megatape.data.io.columns import list_column, number_column, numbers_of, text_column
from megatape.data.shards.entries import SPLITS

if TYPE_CHECKING:
    from pyarrow import RecordBatch

# Columns besides those of the document table.
SPLIT = "split"
INPUT = "input"
IDS = "ids"


@dataclass(frozen=True)
class DocumentBatch:
    """Documents tokenized together, as columns of Arrow with a row per document.

    Attributes:
        rows: Columns of the document table (shards/tables/table_writer.py), and three more:
            split  uint8              index of the split in SPLITS
            input  string             element of `Source.inputs` containing the document
            ids    list<token dtype>  token ids
    """

    rows: "RecordBatch"

    @classmethod
    def build(cls, table: "RecordBatch", splits: np.ndarray, inputs: Sequence[str], ids: np.ndarray) -> Self:
        """Return the documents in the rows of a document table.

        Args:
            table: Rows of the table.
            splits: Index of each document's split in SPLITS, [documents].
            inputs: Element of `Source.inputs` containing each document.
            ids: Token ids of all documents, in order, as in shards.
        """
        rows = table.append_column(SPLIT, number_column(splits, "uint8"))
        rows = rows.append_column(INPUT, text_column(inputs))
        return cls(rows.append_column(IDS, list_column(ids, numbers_of(table["tokens"]))))

    def __len__(self) -> int:
        return self.rows.num_rows

    @property
    def ids(self) -> np.ndarray:
        """Token ids of all documents, in order."""
        return numbers_of(self.rows[IDS])

    @property
    def num_tokens(self) -> np.ndarray:
        """Tokens per document, int64 [documents]."""
        return numbers_of(self.rows["tokens"])

    @property
    def text_bytes(self) -> np.ndarray:
        """Text sizes in UTF-8, int64 [documents]."""
        return numbers_of(self.rows["bytes"])

    @property
    def inputs(self) -> list[str]:
        """Element of `Source.inputs` containing each document."""
        return self.rows[INPUT].to_pylist()

    def numbered_inputs(self) -> tuple[list[str], np.ndarray]:
        """Return the distinct inputs, and the index of each document's input among them, int32 [documents]."""
        inputs = self.rows[INPUT].dictionary_encode()
        return inputs.dictionary.to_pylist(), numbers_of(inputs.indices)

    @property
    def table(self) -> "RecordBatch":
        """Rows of the document table."""
        return self.rows.drop_columns([SPLIT, INPUT, IDS])

    def in_split(self, split: str) -> "DocumentBatch":
        """Return the documents in a split."""
        return self.select(numbers_of(self.rows[SPLIT]) == SPLITS.index(split))

    def select(self, is_selected: np.ndarray) -> "DocumentBatch":
        """Return the documents for which `is_selected`, bool [documents], is True."""
        # The import takes a third of a second.
        import pyarrow

        if is_selected.all():
            return self
        # Runs of documents are copied whole. `take` would copy token ids one by one, and need pyarrow.compute.
        edges = np.flatnonzero(np.diff(is_selected, prepend=False, append=False))
        runs = [self.rows.slice(begin, end - begin) for begin, end in edges.reshape(-1, 2).tolist()]
        if not runs:
            return DocumentBatch(self.rows.slice(0, 0))
        return DocumentBatch(pyarrow.concat_batches(runs))
