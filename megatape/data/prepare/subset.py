"""A part of a data directory: documents are selected by their tables, and their tokens are written into new shards."""

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
from megatape.utils.files import create_file, new_folder

KIND = "subset"


@dataclass(frozen=True)
class Selection:
    """Conditions that the documents of a subset meet.

    Attributes:
        domain: They are of one of these domains, as `megatape data report` names them; empty: of any.
        place: Their place in the source begins with this.
        min_tokens: They have at least so many tokens, control tokens included.
        max_tokens: They have at most so many tokens; None: any number.
        score: Cleaning rule whose score counts; empty: none does.
        min_score: Their score is at least this.
        share: They are among this share of all, which the hashes of their texts draw: a larger one has those of a smaller one.

    Raises:
        UserError: There is a least score, and no rule.
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
        """Which documents of a pyarrow.Table meet all conditions, bool.

        Args:
            rows: Table of documents.
            split: Name of its split, for errors.

        Raises:
            UserError: The table has no such scores, or no hashes.
        """
        from pyarrow import array, compute

        tokens = rows["tokens"].to_numpy()
        chosen = (tokens >= self.min_tokens) & (tokens <= (self.max_tokens or tokens))
        chosen &= compute.starts_with(rows["place"], self.place).to_numpy()
        if self.domain:
            domains = compute.struct_field(compute.extract_regex(compute.utf8_lower(rows["url"]), DOMAIN), "domain")
            chosen &= compute.is_in(domains, value_set=array(self.domain)).to_numpy()
        lack = f"{split}: its tables lack what `score` or `share` reads"
        with content_errors(lack, "name another rule, or prepare it again", (KeyError, TypeError, ValueError)):
            if self.score:
                chosen &= [json.loads(scores)[self.score] >= self.min_score for scores in rows["scores"].to_pylist()]
            if self.share < 1:  # the hash alone has decided the split, so it is mixed
                chosen &= rows["hash"].to_numpy() * FACTOR < np.uint64(self.share * 2**64)
        return chosen


@path_errors()
def subset(folder: Path, output: Path, selection: Selection, progress: OnTokens = lambda tokens: None) -> Index:
    """Write the data directory `output` with some documents of another one, in order, all or nothing.

    Args:
        folder: Data directory with tables of documents.
        output: New folder.
        selection: Which documents it gets.
        progress: Called with the tokens that are written.

    Returns:
        The index.

    Raises:
        UserError, FileNotFoundError: `folder` is missing or corrupted, has no tables, or a split has no such document.
        FileExistsError: `output` exists.
    """
    from pyarrow import parquet

    index = load_index(folder)
    counts = DocumentCounts()
    splits = dict[str, Any]()
    tables = dict[str, Any]()
    with new_folder(output) as new:
        for split in SPLITS:
            stored = StoredSplit(folder, split)
            tables[split] = []
            writer = SplitWriter(new, split, stored.vocab_size, stored.eos_id)
            for number, (rows, firsts) in enumerate(stored.tables.isolate().each()):
                chosen = selection.choose(rows, stored.name)
                rows = rows.filter(chosen)
                num_tokens, text_bytes = (int(rows[name].to_numpy().sum()) for name in ("tokens", "bytes"))
                counts.add(DocumentCounts(chosen.size, len(rows), num_tokens, text_bytes))
                if len(rows):
                    path = new / f"{split}-{number:05d}-documents.parquet"
                    with create_file(path) as file:
                        parquet.write_table(rows, file, ROWS, compression="zstd", use_dictionary=False, write_statistics=False)
                    tables[split].append(DocumentTable(path.name, file_sha256(path), len(rows), num_tokens))
                edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))  # of documents that follow each other
                for begin, end in firsts[edges].reshape(-1, 2).tolist():
                    for first in range(begin, end, MEMBER_TOKENS):
                        ids = stored.stream(first, min(first + MEMBER_TOKENS, end))
                        writer.add(ids, text_bytes)
                        text_bytes = 0
                        progress(ids.size)
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
