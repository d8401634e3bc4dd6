"""Prepared data from and to the files of other systems: token ids and where documents end, bit for bit.

The interface of their formats, the simplest format, import and export.

A new format is a file with a subclass of TokenFormat and a line in TOKEN_FORMATS.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from megatape.data.shards.entries import SPLITS, Index, check_filled, token_dtype
from megatape.data.shards.hashes import split_of
from megatape.data.shards.index import build_index, load_index, store_tokenizer
from megatape.data.shards.reader import OnTokens, SplitReader
from megatape.data.shards.writer import SplitWriter
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError, path_errors
from megatape.registry import TOKEN_FORMATS
from megatape.utils.files import create_file, new_folder, open_regular

BLOCK_IDS = 2**20


class TokenFormat(ABC):
    """Token ids of one split in the files of another system, of which memory holds a small part at a time.

    Attributes:
        piece: What `read` gives. "document": a document. "sample" and "block": any number of tokens of a stream in which only
            end tokens tell where documents end; a sample may be meant as a document, a block is only what was read at a time.
    """

    piece: ClassVar[Literal["document", "sample", "block"]]

    @abstractmethod
    def read(self, path: Path, dtype: np.dtype) -> Iterator[np.ndarray]:
        """The pieces, integers of any type, in order.

        Args:
            path: File or folder of the format.
            dtype: Type of the ids where the files do not say.

        Raises:
            FileNotFoundError: A file is missing.
            UserError: Files are corrupted or not of this format.
        """

    @abstractmethod
    def write(self, path: Path, documents: Iterable[np.ndarray], dtype: np.dtype) -> None:
        """Write documents.

        Args:
            path: Without the suffix of the format's files, if it has one.
            documents: Ids of each, its end token included.
            dtype: Type of the ids.
        """


class Flat(TokenFormat):
    """PATH.bin: token ids and nothing else, as nanoGPT, LongLoRA and landmark attention map it (np.memmap(path, np.uint16)).

    The file says neither the type of its ids, uint16 up to 65,536 tokens and uint32 beyond as in our shards, nor where
    documents end, which their end tokens do.
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
            while (ids := np.fromfile(file, dtype, BLOCK_IDS)).size:
                yield ids

    def write(self, path: Path, documents: Iterable[np.ndarray], dtype: np.dtype) -> None:
        with create_file(path.with_name(f"{path.name}.bin")) as file:
            for ids in documents:
                file.write(np.ascontiguousarray(ids, dtype).data)


KIND = "import"
MAX_TOKENS = 2**26  # of a document, which is held in memory: more without an end token is no document


@dataclass(frozen=True)
class TokenFiles:
    """Token ids in the files of another system.

    Attributes:
        format: A name of TOKEN_FORMATS.
        inputs: Files that the format reads, in order.
        validation: Files of the validation split; empty: a share of the documents of `inputs`.
        validation_share: This share, by a hash of a document's ids.
        append_eos: Whether documents (samples of mds) lack the end token, which is then added.

    Raises:
        UserError: Documents of the format cannot lack an end token.
    """

    format: str
    inputs: tuple[Path, ...]
    validation: tuple[Path, ...] = ()
    validation_share: float = 0.02
    append_eos: bool = False

    def __post_init__(self) -> None:
        if self.append_eos and self.reader.piece == "block":
            raise UserError(f"append_eos: files of format {self.format} do not say where documents end: leave it out")

    @property
    def reader(self) -> TokenFormat:
        """The reader of the format."""
        return TOKEN_FORMATS[self.format].load()()


@dataclass
class ImportCounts:
    """Documents of an import.

    Attributes:
        written: Number of documents written.
        begun: Number of those that begin as the tokenizer's do.
        empty: Number of documents without tokens, which are dropped.
        unfinished: Number of inputs whose last document had no end token, which was added.
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
        output: The data directory.
        tokenizer: Tokenizer of the ids.
        progress: Called with the number of tokens of each document.

    Returns:
        The index, and the counts.

    Raises:
        FileNotFoundError: A file is missing.
        UserError: Files are corrupted, of another format or of another tokenizer.
        FileExistsError: `output` exists.
    """
    counts = ImportCounts()
    with new_folder(output) as directory:
        writers = {split: SplitWriter(directory, split, tokenizer.vocab_size, tokenizer.eos_id) for split in SPLITS}
        for split, ids in _documents(files, tokenizer, counts):
            writers[split].add(ids, text_bytes=0)
            progress(ids.size)
        splits = {split: writer.close() for split, writer in writers.items()}
        remedy = "its files are empty" if files.validation else "change `validation_share`, or give `validation`"
        check_filled(splits, f"none of the {counts.written:,} documents: {remedy}")
        source: dict[str, Any] = {"kind": KIND, "format": files.format, "inputs": [str(path) for path in files.inputs]}
        if files.validation:
            source["validation"] = [str(path) for path in files.validation]
        index = build_index(
            directory,
            tokenizer,
            source=source,
            validation_share=0.0 if files.validation else files.validation_share,
            splits=splits,
            counts={"empty documents": counts.empty} if counts.empty else {},
        )
    return index, counts


@path_errors()
def export_data(directory: Path, name: str, output: Path, progress: OnTokens = lambda tokens: None) -> Index:
    """Write a data directory in a format of TOKEN_FORMATS, with the tokenizer's files. Returns the index of the data.

    The data are written as output/train... and output/validation...

    Raises FileNotFoundError or UserError if the data are corrupted, FileExistsError if `output` exists. Then nothing is left.
    """
    index = load_index(directory)
    if index.answers:
        raise UserError(f"{directory} holds prompts and answers: format {name} cannot tell them apart, so it is not exported")
    writer: TokenFormat = TOKEN_FORMATS[name].load()()
    tokenizer = stored_tokenizer(directory, index.tokenizer.files)
    with new_folder(output) as folder:
        for split in SPLITS:
            documents = divided(SplitReader(directory, index, split).members(progress), tokenizer.eos_id, directory)
            writer.write(folder / split, documents, token_dtype(tokenizer.vocab_size))
        store_tokenizer(tokenizer, folder)
    return index


def _documents(files: TokenFiles, tokenizer: Tokenizer, counts: ImportCounts) -> Iterator[tuple[str, np.ndarray]]:
    """Split and ids of every document."""
    given = [(path, "train") for path in files.inputs] + [(path, "validation") for path in files.validation]
    for path, split in given:
        for ids in divided(_pieces(files, path, tokenizer, counts), tokenizer.eos_id, path):
            if not 0 <= ids.min() <= ids.max() < tokenizer.vocab_size:
                raise UserError(
                    f"{path}: token ids {ids.min()}..{ids.max()}, but {tokenizer.origin} has {tokenizer.vocab_size:,} ids: "
                    "give the tokenizer that made them"
                )
            if ids[-1] != tokenizer.eos_id:
                counts.unfinished += 1
                ids = np.append(ids, tokenizer.eos_id)  # else it would go on with the next input
            counts.written += 1
            counts.begun += [int(ids[0])] == tokenizer.begin or not tokenizer.begin
            yield split if files.validation else split_of(ids.astype("<u4").tobytes(), files.validation_share), ids


def _pieces(files: TokenFiles, path: Path, tokenizer: Tokenizer, counts: ImportCounts) -> Iterator[np.ndarray]:
    """The pieces of an input that are not empty, with the end tokens that are to be added.

    Raises UserError for a document that does not end with its only end token.
    """
    reader = files.reader
    for number, ids in enumerate(reader.read(path, token_dtype(tokenizer.vocab_size))):
        if not ids.size:
            counts.empty += 1
            continue
        if files.append_eos and ids[-1] != tokenizer.eos_id:
            ids = np.append(ids, tokenizer.eos_id)
        if reader.piece == "document":
            ends = np.flatnonzero(ids == tokenizer.eos_id)
            if ends.tolist() != [ids.size - 1]:
                place = f"at {ends[0]:,} of {ids.size:,} tokens" if ends.size else "nowhere"
                raise UserError(
                    f"{path}: document {number:,} has the end token of {tokenizer.origin}, {tokenizer.eos_id}, {place}, not "
                    "only at its end: give the tokenizer that made it, or `append_eos` if it was made without end tokens"
                )
        yield ids


def divided(pieces: Iterator[np.ndarray], eos_id: int, origin: Path) -> Iterator[np.ndarray]:
    """The documents of a stream of token ids, each with its end token; the last one may have none.

    Raises UserError if there is no end token, or none in MAX_TOKENS.
    """
    begun: list[np.ndarray] = []
    size = 0
    ended = False
    for ids in pieces:
        parts = np.split(ids, np.flatnonzero(ids == eos_id) + 1)
        for part in parts[:-1]:
            yield np.concatenate([*begun, part]) if begun else part
            begun = []
            size = 0
            ended = True
        if parts[-1].size:
            begun.append(parts[-1])
            size += parts[-1].size
        if size > MAX_TOKENS:
            break
    if begun and (size > MAX_TOKENS or not ended):
        raise UserError(
            f"{origin}: {size:,} tokens without the end token, {eos_id}: give the tokenizer that made them, or `append_eos` if "
            "documents (samples of mds) were made without"
        )
    if begun:
        yield np.concatenate(begun)
