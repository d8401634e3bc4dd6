"""Imports other systems' token files as a data directory, keeping token ids and document ends exactly."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megatape.data.counts import EMPTY_DOCUMENTS
from megatape.data.formats.documents import divided
from megatape.data.formats.token_format import TokenFormat
from megatape.data.shards.entries import SPLITS, Index, check_filled, token_dtype
from megatape.data.shards.hashes import split_of
from megatape.data.shards.index import build_index
from megatape.data.shards.reading.reader import OnTokens
from megatape.data.shards.writer import SplitWriter
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError, flag, path_errors
from megatape.registry import TOKEN_FORMATS
from megatape.utils.files.atomic import new_folder

KIND = "import"


@dataclass(frozen=True)
class TokenFiles:
    """Token files of another system.

    Attributes:
        format: Format name in TOKEN_FORMATS.
        inputs: Files in this format, in order.
        validation: Files for the validation split; empty: a share of the documents in `inputs`.
        validation_share: Share of documents to hold out, selected by hashing their ids.
        append_eos: Whether documents (mds samples) lack end tokens, so that they are added.

    Raises:
        UserError: `append_eos` does not apply to the format.
    """

    format: str
    inputs: tuple[Path, ...]
    validation: tuple[Path, ...] = ()
    validation_share: float = 0.02
    append_eos: bool = False

    def __post_init__(self) -> None:
        if self.append_eos and self.reader.piece == "block":
            raise UserError(f"{flag('append_eos')}: files of format {self.format} do not say where documents end: leave it out")

    @property
    def reader(self) -> TokenFormat:
        """Reader for the format."""
        return TOKEN_FORMATS[self.format].load()()

    def describe(self) -> dict[str, Any]:
        """Return the record of the source in the index."""
        described: dict[str, Any] = {"kind": KIND, "format": self.format, "inputs": [str(path) for path in self.inputs]}
        if self.validation:
            described["validation"] = [str(path) for path in self.validation]
        return described


@dataclass
class ImportCounts:
    """Document counts of an import.

    Attributes:
        written: Documents written.
        begun: Documents beginning with the tokenizer's first token.
        empty: Documents without tokens, which are dropped.
        unfinished: Inputs whose last document lacked an end token, which was added.
    """

    written: int = 0
    begun: int = 0
    empty: int = 0
    unfinished: int = 0


@path_errors()
def import_data(
    files: TokenFiles, output: Path, tokenizer: Tokenizer, progress: OnTokens = lambda tokens: None
) -> tuple[Index, ImportCounts]:
    """Write a data directory, or nothing if an error is raised.

    Args:
        files: Files to read.
        output: Data directory to write.
        tokenizer: Tokenizer of the ids.
        progress: Called with the number of tokens in each document.

    Returns:
        Index of the data directory, and counts.

    Raises:
        FileNotFoundError: A file is missing.
        UserError: Files are corrupted, or of another format or tokenizer.
        FileExistsError: `output` exists.
    """
    counts = ImportCounts()
    with new_folder(output) as directory:
        writers = {split: SplitWriter(directory, split, tokenizer.vocab_size, tokenizer.eos_id) for split in SPLITS}
        for split, ids in _documents(files, tokenizer, counts):
            writers[split].add(ids, text_bytes=0)
            progress(ids.size)
        splits = {split: writer.close() for split, writer in writers.items()}
        validation_share = files.validation_share
        remedy = f"change {flag('validation_share')}, or give {flag('validation')}"
        if files.validation:
            validation_share = 0.0
            remedy = "its files are empty"
        check_filled(splits, f"none of the {counts.written:,} documents: {remedy}")
        dropped = {}
        if counts.empty:
            dropped[EMPTY_DOCUMENTS] = counts.empty
        index = build_index(
            directory,
            tokenizer,
            source=files.describe(),
            validation_share=validation_share,
            splits=splits,
            counts=dropped,
        )
    return index, counts


def _documents(files: TokenFiles, tokenizer: Tokenizer, counts: ImportCounts) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (split, ids) for every document."""
    inputs = [(path, "train") for path in files.inputs] + [(path, "validation") for path in files.validation]
    for path, split_of_file in inputs:
        for ids in divided(_pieces(files, path, tokenizer, counts), tokenizer.eos_id, path):
            if not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
                raise UserError(
                    f"{path}: token ids {ids.min()}..{ids.max()}, but {tokenizer.origin} has {tokenizer.vocab_size:,} ids: "
                    "give the tokenizer that made them"
                )
            if ids[-1] != tokenizer.eos_id:
                counts.unfinished += 1
                # Otherwise the document would continue with the next input.
                ids = np.append(ids, tokenizer.eos_id)
            counts.written += 1
            if not tokenizer.begin or [int(ids[0])] == tokenizer.begin:
                counts.begun += 1
            split = split_of_file
            if not files.validation:
                split = split_of(ids.astype("<u4").tobytes(), files.validation_share)
            yield split, ids


def _pieces(files: TokenFiles, path: Path, tokenizer: Tokenizer, counts: ImportCounts) -> Iterator[np.ndarray]:
    """Yield the pieces of an input, skipping empty ones and adding end tokens.

    Raises:
        UserError: A document has an end token elsewhere, or none.
    """
    reader = files.reader
    for number, ids in enumerate(reader.read(path, token_dtype(tokenizer.vocab_size))):
        if not ids.size:
            counts.empty += 1
            continue
        if files.append_eos and ids[-1] != tokenizer.eos_id:
            ids = np.append(ids, tokenizer.eos_id)
        if reader.piece == "document":
            _check_end(ids, number, path, tokenizer)
        yield ids


def _check_end(ids: np.ndarray, number: int, path: Path, tokenizer: Tokenizer) -> None:
    ends = np.flatnonzero(ids == tokenizer.eos_id)
    if ends.tolist() == [ids.size - 1]:
        return
    position = "nowhere"
    if ends.size:
        position = f"at {ends[0]:,} of {ids.size:,} tokens"
    raise UserError(
        f"{path}: document {number:,} has the end token of {tokenizer.origin}, {tokenizer.eos_id}, {position}, not "
        f"only at its end: give the tokenizer that made it, or {flag('append_eos')} if it was made without end tokens"
    )
