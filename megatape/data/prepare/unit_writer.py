"""What one tokenizer makes of a unit's documents: shards, tables and counts."""

from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np

from megatape.data.prepare.summary import Summary, WrittenSplit
from megatape.data.shards.document_table import TableWriter
from megatape.data.shards.index import SPLITS, Tally
from megatape.data.shards.writer import SplitWriter
from megatape.data.sources.source import CorpusCounts, Document
from megatape.data.tokenizers.fast import IdsDiffer
from megatape.data.tokenizers.tokenizer import Tokenizer


class UnitWriter:
    """Writes into `folder`.

    part: of the names of all files. encode: gives the tokenizer's ids. Attributes: tokens, written so far.
    """

    def __init__(self, folder: Path, part: str, tokenizer: Tokenizer, encode: Callable[[list[str]], list[np.ndarray]]) -> None:
        self._folder, self._encode = folder, encode
        self._shards = {
            split: SplitWriter(folder, f"{split}{part}", tokenizer.vocab_size, tokenizer.eos_id) for split in SPLITS
        }
        self._tables = {split: TableWriter(folder, f"{split}{part}") for split in SPLITS}
        self._written: defaultdict[str, Tally] = defaultdict(Tally)  # by input
        self.tokens = 0

    def add(self, batch: list[tuple[str, Document]]) -> None:
        """Append documents, each with its split. Raises IdsDiffer, which names the place of the document."""
        try:
            encoded = self._encode([document.text for _, document in batch])
        except IdsDiffer as difference:
            place = batch[difference.number][1].place
            raise IdsDiffer(difference.number, f"{place}: {difference}") from difference
        for (split, document), ids in zip(batch, encoded, strict=True):
            text_bytes = len(document.text.encode())
            self._shards[split].add(ids, text_bytes)
            self._tables[split].add(ids.size, text_bytes, document.place, document.url)
            tally = self._written[document.input]
            tally.written += 1
            tally.tokens += ids.size
            tally.text_bytes += text_bytes
            self.tokens += ids.size

    def close(self, counts: CorpusCounts) -> None:
        """Write the rest and the summary. counts: of all that was read."""
        splits = {
            split: WrittenSplit(writer.close(), writer.token_counts, self._tables[split].close())
            for split, writer in self._shards.items()
        }
        counts = deepcopy(counts)
        counts.add(CorpusCounts(inputs=dict(self._written)))
        Summary(splits, counts).save(self._folder)
