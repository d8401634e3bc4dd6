"""Writes a part of a data directory: selects documents by their tables, and writes their tokens into new shards."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megatape.data.cleaning.word_runs import FACTOR
from megatape.data.counts import DocumentCounts
from megatape.data.document_entries import DocumentTable
from megatape.data.prepare.merge import records_of
from megatape.data.shards.document_tables import DOMAIN
from megatape.data.shards.entries import SPLITS, Index, check_filled
from megatape.data.shards.hashes import file_sha256
from megatape.data.shards.index import build_index, load_index
from megatape.data.shards.reader import OnTokens
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.shards.table_writer import ROWS
from megatape.data.shards.writer import MEMBER_TOKENS, SplitWriter
from megatape.errors import UserError, content_errors, path_errors
from megatape.utils.atomic import new_folder
from megatape.utils.files import create_file

KIND = "subset"
# Maximum number of tokens read at a time.
READ_TOKENS = MEMBER_TOKENS


@dataclass(frozen=True)
class Selection:
    """Conditions on the documents of a subset.

    Attributes:
        domain: Domains of the documents, as `megatape data report` names them; empty: any.
        place: Beginning of their place in the source.
        min_tokens: Minimum number of tokens, including control tokens.
        max_tokens: Maximum number of tokens. None: any number.
        score: Cleaning rule whose score counts; empty: none.
        min_score: Minimum score.
        share: Share of all documents, selected by the hashes of their texts. A larger share contains a smaller one.

    Raises:
        UserError: There is a minimum score, but no rule.
    """

    domain: tuple[str, ...] = ()
    place: str = ""
    min_tokens: int = 1
    max_tokens: int | None = None
    score: str = ""
    min_score: float = 0.0
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.min_score and not self.score:
            raise UserError(f"min_score {self.min_score} needs `score`, the rule whose score it bounds")

    def choose(self, rows: Any, split: str) -> np.ndarray:
        """Return a bool mask of the documents that meet all conditions.

        Args:
            rows: Table of documents, a pyarrow.Table.
            split: Name of its split, for errors.

        Raises:
            UserError: The table has no such scores, or no hashes.
        """
        from pyarrow import array, compute

        tokens = rows["tokens"].to_numpy()
        chosen = (tokens >= self.min_tokens) & (tokens <= (self.max_tokens or tokens))
        chosen &= compute.starts_with(rows["place"], self.place).to_numpy()
        if self.domain:
            match = compute.extract_regex(compute.utf8_lower(rows["url"]), DOMAIN)
            domains = compute.struct_field(match, "domain")
            chosen &= compute.is_in(domains, value_set=array(self.domain)).to_numpy()
        lack = f"{split}: its tables lack what `score` or `share` reads"
        with content_errors(lack, "name another rule, or prepare it again", (KeyError, TypeError, ValueError)):
            if self.score:
                scores = [json.loads(text)[self.score] for text in rows["scores"].to_pylist()]
                chosen &= [score >= self.min_score for score in scores]
            if self.share < 1:
                # The hash has decided the split as well, so it is mixed first.
                chosen &= rows["hash"].to_numpy() * FACTOR < np.uint64(self.share * 2**64)
        return chosen


@path_errors()
def subset(folder: Path, output: Path, selection: Selection, progress: OnTokens = lambda tokens: None) -> Index:
    """Write the data directory `output` with some documents of another one, in order, all or nothing.

    Args:
        folder: Data directory with tables of documents.
        output: New folder.
        selection: Conditions on the documents.
        progress: Called repeatedly with the number of tokens written since the last call.

    Returns:
        The index.

    Raises:
        UserError, FileNotFoundError: `folder` is missing or corrupted, has no tables, or a split has no such document.
        FileExistsError: `output` exists.
    """
    index = load_index(folder)
    counts = DocumentCounts()
    splits = {}
    tables = {}
    with new_folder(output) as new:
        for split in SPLITS:
            stored = StoredSplit(folder, split)
            writer = SplitWriter(new, split, stored.vocab_size, stored.eos_id)
            tables[split] = _write_split(stored, new, selection, writer, counts, progress)
            splits[split] = writer.close()
        check_filled(splits, f"no document of {folder}, since none meets all conditions: select more")
        counts.dropped = {KIND: counts.kept - counts.written}
        return build_index(
            new,
            stored.tokenizer(),
            source={"kind": KIND, "folder": str(folder)},
            validation_share=index.validation_share,
            splits=splits,
            counts=counts.dropped,
            document_tables=tables,
            ledger={str(folder): counts},
            rules=[*index.rules, {"rule": KIND, "options": vars(selection) | {"domain": list(selection.domain)}}],
            merged=records_of(folder, index),
        )


def _write_split(
    stored: StoredSplit,
    new: Path,
    selection: Selection,
    writer: SplitWriter,
    counts: DocumentCounts,
    progress: OnTokens,
) -> list[DocumentTable]:
    """Write the selected documents of a split, and their tables.

    Args:
        stored: Split to select from.
        new: Folder for the tables.
        selection: Conditions on the documents.
        writer: Writer of their tokens.
        counts: Counts to update.
        progress: Called repeatedly with the number of tokens written since the last call.

    Returns:
        Entries of the tables in the index.
    """
    tables = []
    for number, (rows, firsts) in enumerate(stored.tables.isolate().each()):
        chosen = selection.choose(rows, stored.name)
        rows = rows.filter(chosen)
        num_tokens = int(rows["tokens"].to_numpy().sum())
        text_bytes = int(rows["bytes"].to_numpy().sum())
        counts.add(DocumentCounts(chosen.size, len(rows), num_tokens, text_bytes))
        if len(rows):
            tables.append(_write_table(rows, new / f"{stored.split}-{number:05d}-documents.parquet", num_tokens))
        # First document of each run of chosen documents, and the document after it.
        edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
        for begin, end in firsts[edges].reshape(-1, 2).tolist():
            for first in range(begin, end, READ_TOKENS):
                ids = stored.stream(first, min(first + READ_TOKENS, end))
                writer.add(ids, text_bytes)
                # The size of all texts is added with the first tokens.
                text_bytes = 0
                progress(ids.size)
    return tables


def _write_table(rows: Any, path: Path, num_tokens: int) -> DocumentTable:
    from pyarrow import parquet

    with create_file(path) as file:
        parquet.write_table(rows, file, ROWS, compression="zstd", use_dictionary=False, write_statistics=False)
    return DocumentTable(path.name, file_sha256(path), len(rows), num_tokens)
