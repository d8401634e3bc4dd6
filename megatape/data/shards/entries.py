"""Entries of `index.json`: tokenizer, splits and shards of a data directory, with sizes, token counts and hashes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field

from megatape.data.counts import Count, DocumentCounts
from megatape.data.document_entries import DocumentFile, DocumentTable, MergedFolder
from megatape.data.shards.hashes import content_hash
from megatape.data.tokenizers.tokenizer import Tokenizer, check_file_name
from megatape.errors import UserError
from megatape.utils.files.paths import FileName

SPLITS = ("train", "validation")
# Largest vocabulary whose ids fit into two bytes.
MAX_SHORT_VOCAB_SIZE = 65_536
TokenizerFile = Annotated[FileName, AfterValidator(check_file_name)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Shard:
    """Tar file with token ids. layout.py describes where they are.

    Attributes:
        file: File name.
        bytes: File size.
        tokens: Token ids.
        documents: Documents ending in the shard.
        member_tokens: Ids per member. The last member may have fewer.
        sha256: Hash over the bytes before the checksums. In earlier versions, over the members' hashes.
    """

    file: FileName
    bytes: Count
    tokens: Annotated[Count, Field(ge=1)]
    documents: Count
    member_tokens: Annotated[Count, Field(ge=1)]
    sha256: Sha256


@dataclass(frozen=True)
class Split:
    """Split of a data directory.

    Attributes:
        documents: Number of documents.
        tokens: Number of tokens.
        text_bytes: Text size in UTF-8.
        unigram_entropy: Entropy of the token frequencies, nats per token: the loss of a model knowing only them.
        shards: Shards in order.
    """

    documents: Count
    tokens: Count
    text_bytes: Count
    unigram_entropy: float
    shards: Sequence[Shard]


@dataclass(frozen=True)
class TokenizerEntry:
    """Tokenizer of a data directory.

    Attributes:
        file: Name of the file deciding all ids.
        sha256: Its hash.
        vocab_size: Largest id plus one.
        bos_id: First token of documents, or None if they begin with their text.
        eos_id: Last token of documents.
        companions: File name -> sha256 of an imported tokenizer's other files.
    """

    file: TokenizerFile
    sha256: str
    vocab_size: Count
    bos_id: Count | None
    eos_id: Count
    companions: dict[TokenizerFile, str] = field(default_factory=dict)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Return the entry for a tokenizer."""
        companions = dict(tokenizer.hashes)
        del companions[tokenizer.file]
        return cls(tokenizer.file, tokenizer.sha256, tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id, companions)

    @property
    def files(self) -> dict[str, str]:
        """File name -> sha256 of all files."""
        return {self.file: self.sha256} | self.companions


@dataclass(frozen=True)
class Answers:
    """Answers in one split. Only their tokens are learned.

    Attributes:
        file: Name of a .npy file, int64 [answers, 3]: example, first token and end, counted in the split's tokens. An example
            begins where the previous one ends, and ends with its last answer.
        sha256: Its hash.
        examples: Number of examples, each with at least one answer.
        tokens: Tokens in all answers, including their end tokens.
        longest: Tokens in the longest example.
        unigram_entropy: Entropy of the token frequencies in answers, nats per token.
    """

    file: FileName
    sha256: str
    examples: Count
    tokens: Count
    longest: Count
    unigram_entropy: float


@dataclass(frozen=True)
class LegacyContent:
    """Parts of an index from an earlier version.

    Attributes:
        member_hashes: Each member's sha256, by shard. These shards have no checksums.
        fingerprints: Each split's fingerprint.
    """

    member_hashes: dict[str, list[str]]
    fingerprints: dict[str, str]


@dataclass(frozen=True)
class Index:
    """Content of `index.json`.

    Attributes:
        tokenizer: Tokenizer.
        dtype: Token id type in shards.
        source: Source of the documents.
        validation_share: The validation split's share of documents; 0 if it has its own source.
        splits: Splits by name.
        answers: Answers by split; empty if whole documents are learned.
        counts: Documents skipped, cut and dropped while preparing, by reason.
        document_tables: Document tables by split, in order; empty without tables.
        ledger: Counts by `--input`, or by source kind for a source without inputs; empty without a ledger.
        rules: Cleaning rules in order, with their options and package versions.
        document_files: Files storing the texts of retained and dropped documents; empty if they were not stored.
        merged: Folders that the documents were merged or selected from, in order; empty if the directory was prepared itself.
        earlier: Parts of an index from an earlier version.
        fingerprint_version: 1: fingerprints include shard names. 2: they do not, so the same documents have the same
            fingerprint however they were merged.
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
    earlier: LegacyContent | None = None
    fingerprint_version: Literal[1, 2] = 1

    @property
    def files(self) -> list[str]:
        """Names of all files in the data directory except the index."""
        names = [*self.tokenizer.files]
        for split in self.splits.values():
            names += [shard.file for shard in split.shards]
        for tables in self.document_tables.values():
            names += [table.file for table in tables]
        names += [documents.file for documents in self.document_files]
        names += [answers.file for answers in self.answers.values()]
        return names

    def fingerprint(self, split: str) -> str:
        """Return the sha256 over a split's content and its tokenizer."""
        if self.earlier is not None:
            return self.earlier.fingerprints[split]
        if self.fingerprint_version == 2:
            shards = [replace(shard, file="") for shard in self.splits[split].shards]
            return content_hash(self.tokenizer.sha256, shards)
        return content_hash(self.tokenizer.sha256, self.splits[split])


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the smallest type holding every id below `vocab_size`, little-endian on every machine."""
    if vocab_size <= MAX_SHORT_VOCAB_SIZE:
        return np.dtype("<u2")
    return np.dtype("<u4")


def check_filled(splits: Mapping[str, Split], reason: str) -> None:
    """Raise UserError if a split has no tokens. The message continues with `reason`, such as "no document: select more"."""
    for name, split in splits.items():
        if not split.tokens:
            raise UserError(f"the {name} split got {reason}")
