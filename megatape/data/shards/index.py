"""`index.json`: the content of a data directory, down to the size, token count and hash of every shard.

`build_index` completes a data directory, `load_index` opens it, and `check_ledger` compares what was read, dropped and written.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field

from megatape.data.counts import Count, DocumentCounts
from megatape.data.document_entries import INDEX_FILE, DocumentFile, DocumentTable, MergedFolder
from megatape.data.shards.layout import BLOCK, CHECKSUM, CHUNK, covered_bytes, from_earlier
from megatape.data.tokenizers.tokenizer import Tokenizer, check_file_name
from megatape.errors import MissingPath, UserError, content_errors, path_errors
from megatape.utils.files import PARTIAL, FileName, as_type, json_content, read_json, write_atomically

FORMAT = "megatape-shards"
VERSION = 4
EARLIER_VERSIONS = (1, 2, 3)  # layout.py; 2 with companions of a tokenizer, 3 of prompts and answers
MAX_INDEX_BYTES = 2**30  # about four million shards, 3e14 tokens; of the earlier versions four million members
SPLITS = ("train", "validation")
TokenizerFile = Annotated[FileName, AfterValidator(check_file_name)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Shard:
    """One tar file in the data directory. layout.py says where its ids are.

    Attributes:
        file: Its name.
        bytes: Its size.
        tokens: Number of its ids.
        documents: Number of documents that end in it.
        member_tokens: Ids of each of its members; the last one may have fewer.
        sha256: Of its bytes up to the checksums; in earlier versions of the hashes of its members.
    """

    file: FileName
    bytes: Count
    tokens: Annotated[Count, Field(ge=1)]
    documents: Count
    member_tokens: Annotated[Count, Field(ge=1)]
    sha256: Sha256


@dataclass(frozen=True)
class Split:
    """One split. unigram_entropy: nats per token, the loss of a model that knows only the token frequencies."""

    documents: Count
    tokens: Count
    text_bytes: Count
    unigram_entropy: float
    shards: list[Shard]


@dataclass(frozen=True)
class TokenizerEntry:
    """The tokenizer in the data directory: the file that decides all ids, and what readers need to know about it.

    bos_id: None if documents begin with their text. companions: name -> sha256 of further files of an imported tokenizer.
    """

    file: TokenizerFile
    sha256: str
    vocab_size: Count
    bos_id: Count | None
    eos_id: Count
    companions: dict[TokenizerFile, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """The entry of a tokenizer."""
        companions = {name: sha256 for name, sha256 in tokenizer.hashes.items() if name != tokenizer.file}
        return cls(tokenizer.file, tokenizer.sha256, tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id, companions)

    @property
    def files(self) -> dict[str, str]:
        """Name -> sha256 of all its files."""
        return {self.file: self.sha256} | self.companions


@dataclass(frozen=True)
class Answers:
    """The answers of one split, which alone are learned.

    file, sha256     of an int64 array [answers, 3] in a .npy file: example, first token and end, counted in the split's tokens.
                     An example begins where the one before it ends, and ends with its last answer
    examples         number of examples, each with an answer or more
    tokens           of all answers, their ends included
    longest          tokens of the longest example
    unigram_entropy  nats per token of the answers
    """

    file: FileName
    sha256: str
    examples: Count
    tokens: Count
    longest: Count
    unigram_entropy: float


@dataclass(frozen=True)
class Earlier:
    """Parts of an index of an earlier version.

    Attributes:
        member_hashes: sha256 of each member, by shard: such shards have no checksums.
        fingerprints: Of the splits.
    """

    member_hashes: dict[str, list[str]]
    fingerprints: dict[str, str]


@dataclass(frozen=True)
class Index:
    """The whole `index.json`; `dtype` is the type of every token id in the shards.

    source           record of where the documents are from
    validation_share share of the documents in the validation split; 0 if it has its own source
    answers          by split; empty if whole documents are learned
    counts           what preparation skipped, cut and dropped
    document_tables  by split, in order; empty in folders without
    ledger           by --input (by the kind of a source without inputs); empty in folders without
    rules            by which the source was cleaned, in order, with their options and the versions of what applied them
    document_files   files of kept and dropped documents; empty if they were not kept
    merged           folders whose documents it has, in order, or of a subset some of them; empty if it was prepared itself
    earlier          of an index that an earlier version wrote
    fingerprint_version  1: fingerprints include the names of shards; 2: they do not, so the same documents have the same
                         fingerprint, independent of the way in which they were merged
    """

    tokenizer: TokenizerEntry
    dtype: str
    source: dict[str, Any]
    validation_share: float
    splits: dict[str, Split]
    answers: dict[str, Answers] = field(default_factory=dict)
    counts: dict[str, Count] = field(default_factory=dict)
    document_tables: dict[str, list[DocumentTable]] = field(default_factory=dict)
    ledger: dict[str, DocumentCounts] = field(default_factory=dict)
    rules: list[dict[str, Any]] = field(default_factory=list)
    document_files: list[DocumentFile] = field(default_factory=list)
    merged: list[MergedFolder] = field(default_factory=list)
    earlier: Earlier | None = None
    fingerprint_version: Literal[1, 2] = 1

    @property
    def files(self) -> list[str]:
        """Names of all files of the data directory except the index: tokenizer, shards, documents and their tables, answers."""
        names = [*self.tokenizer.files]
        for split in self.splits.values():
            names += [shard.file for shard in split.shards]
        for tables in self.document_tables.values():
            names += [table.file for table in tables]
        names += [documents.file for documents in self.document_files]
        names += [answers.file for answers in self.answers.values()]
        return names

    def fingerprint(self, split: str) -> str:
        """sha256 over the content of a split and its tokenizer."""
        if self.earlier is not None:
            return self.earlier.fingerprints[split]
        if self.fingerprint_version == 2:
            shards = [replace(shard, file="") for shard in self.splits[split].shards]
            return content_hash(self.tokenizer.sha256, shards)
        return content_hash(self.tokenizer.sha256, self.splits[split])


def content_hash(*parts: Any) -> str:
    """sha256 of values that JSON can have, and of dataclasses of them."""
    return hashlib.sha256(json.dumps(parts, default=vars, sort_keys=True).encode()).hexdigest()


def token_dtype(vocab_size: int) -> np.dtype:
    """The smallest type that holds every id below `vocab_size`, little-endian on every machine."""
    return np.dtype("<u2" if vocab_size <= 65_536 else "<u4")


def build_index(directory: Path, tokenizer: Tokenizer, **content: Any) -> Index:
    """Complete a data directory: write the tokenizer's files and `index.json` beside its shards.

    Args:
        directory: Folder of the shards.
        tokenizer: Tokenizer of the token ids.
        content: Further fields of Index: `source`, `validation_share`, `splits`, and those that are empty by default.

    Raises:
        UserError: A document is missing in the ledger or counted twice.
    """
    store_tokenizer(tokenizer, directory)
    index = Index(TokenizerEntry.of(tokenizer), token_dtype(tokenizer.vocab_size).name, **content)
    if index.ledger:
        check_ledger(index)
    save_index(index, directory)
    return index


def check_filled(splits: Mapping[str, Split], reason: str) -> None:
    """Raise UserError if a split has no tokens. reason: which documents it got, and a remedy."""
    for name, split in splits.items():
        if not split.tokens:
            raise UserError(f"the {name} split got {reason}")


def store_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the files of a tokenizer into a folder, where an interrupted attempt may have written them before."""
    for name, content in tokenizer.files.items():
        write_atomically(directory / name, content)


def file_sha256(path: Path) -> str:
    """Hash of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, sha256: str) -> None:
    """Raise MissingPath or UserError if a file of a data directory is not the one that its index lists."""
    if not path.is_file():
        raise MissingPath(f"{path}: not found, the index lists it: copy it again or re-run the preparation")
    if (found := file_sha256(path)) != sha256:
        raise UserError(
            f"{path}: corrupted, sha256 is {found}, the index says {sha256}: copy it again or re-run the preparation"
        )


def save_index(index: Index, directory: Path) -> None:
    """Write `index.json` into `directory`. Raises UserError if `load_index` would not accept it."""
    content = {"format": FORMAT, "version": VERSION, **asdict(index)}
    if not index.tokenizer.companions:
        del content["tokenizer"]["companions"]
    if index.fingerprint_version == 1:
        del content["fingerprint_version"]
    for name in ("answers", "counts", "document_tables", "ledger", "rules", "document_files", "merged", "earlier"):
        if not content[name]:
            del content[name]
    for counts in content.get("ledger", {}).values():
        if not counts["skipped_files"]:
            del counts["skipped_files"], counts["skipped_bytes"]
    path = directory / INDEX_FILE
    write_atomically(path, json_content(content, str(path), indent=1, max_bytes=MAX_INDEX_BYTES) + b"\n")


@path_errors()
def load_index(directory: Path) -> Index:
    """Reads `index.json` of a data directory.

    Raises FileNotFoundError if there is none, and UserError for another format or version or inconsistent content.
    """
    path = directory / INDEX_FILE
    if not path.is_file():
        if Path(str(directory).removesuffix(PARTIAL) + PARTIAL).is_dir():
            raise MissingPath(f"{directory} is still being prepared: give the same command again, which resumes it")
        raise MissingPath(f"{path}: not found: {directory} is not a data directory, make one with `megatape prepare corpus`")
    with content_errors(f"{path}: not JSON", "copy it again or re-run the preparation"):
        content = read_json(path, max_bytes=MAX_INDEX_BYTES)
    found = (content.get("format"), content.get("version")) if isinstance(content, dict) else None
    known = [(FORMAT, version) for version in (*EARLIER_VERSIONS, VERSION)]
    if found not in known:
        raise UserError(
            f"{path}: format and version are {found}, this version of MegaTAPE reads {', '.join(map(str, known))}: prepare the "
            "data again, or read it with the version that wrote it"
        )
    with content_errors(f"{path}: corrupted", "copy it again or re-run the preparation"):
        index = as_type(content if content["version"] == VERSION else _present(content), Index)
        _check(index)
    return index


def _present(content: dict[str, Any]) -> dict[str, Any]:
    """An index of an earlier version as the present one has it."""
    entry = as_type(content.get("tokenizer"), TokenizerEntry)
    splits, hashes = from_earlier(content.get("splits"), token_dtype(entry.vocab_size).itemsize)
    fingerprints = {name: content_hash(entry.sha256, content["splits"][name]) for name in splits}
    return {**content, "splits": splits, "earlier": {"member_hashes": hashes, "fingerprints": fingerprints}}


def _check(index: Index) -> None:
    """Check what readers rely on to stay inside the files."""
    dtype = token_dtype(index.tokenizer.vocab_size)
    if index.tokenizer.file in index.tokenizer.companions:
        raise UserError(f"{index.tokenizer.file} is both the tokenizer's file and a companion of it")
    if index.splits.keys() != set(SPLITS):
        raise UserError(f"splits are {', '.join(index.splits)}, not {', '.join(SPLITS)}")
    if index.dtype != dtype.name:
        raise UserError(f"dtype is {index.dtype}, vocab_size {index.tokenizer.vocab_size} needs {dtype.name}")
    if index.answers and index.answers.keys() != index.splits.keys():
        raise UserError(f"answers has {', '.join(index.answers)}, not every split")
    listed = Counter(index.files)
    for name, count in listed.items():
        if count > 1 or name == INDEX_FILE:
            raise UserError(f"{name} is listed as two files")
    for name, split in index.splits.items():
        for shard in split.shards:
            end = covered_bytes(shard.tokens, shard.member_tokens, dtype.itemsize)
            if index.earlier is None:
                end += BLOCK - end // -CHUNK * CHECKSUM
            if shard.bytes < end:
                raise UserError(f"{shard.file}: its {shard.tokens} tokens take {end} bytes, it has {shard.bytes}")
        tokens = sum(shard.tokens for shard in split.shards)
        if tokens != split.tokens:
            raise UserError(f"{name}: tokens is {split.tokens}, its shards hold {tokens}")


def check_ledger(index: Index) -> DocumentCounts:
    """Compare the ledger of a data directory with the counts of reasons, splits and tables.

    Reading, dropping and writing are counted where they happen, so this finds what was counted twice or never.

    Returns:
        The sum of the ledger.

    Raises:
        UserError: A document is missing or counted twice.
    """
    total = DocumentCounts()
    for name, counts in index.ledger.items():
        total.add(counts)
        _check_equal(f"documents of {name}", counts.read, counts.written + sum(counts.dropped.values()))
    splits = index.splits.values()
    tables = [table for tables in index.document_tables.values() for table in tables]
    _check_equal("documents in the tables", sum(table.documents for table in tables), total.written)
    _check_equal("tokens in the tables", sum(table.tokens for table in tables), total.tokens)
    _check_equal("tokens in the splits", sum(split.tokens for split in splits), total.tokens)
    _check_equal("bytes of text in the splits", sum(split.text_bytes for split in splits), total.text_bytes)
    for reason in {**total.dropped, **index.counts}:
        _check_equal(f"counts: {reason}", index.counts.get(reason, 0), total.dropped.get(reason, 0))
    return total


def _check_equal(name: str, count: int, ledger_count: int) -> None:
    if count != ledger_count:
        raise UserError(
            f"{name}: {count:,}, but the ledger accounts for {ledger_count:,}: index.json was changed, or this is a bug of "
            "MegaTAPE; please report it"
        )
