"""What one unit of a preparation has written, and the sum of all."""

import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from megatape.data.shards.index import DocumentTable, Split
from megatape.data.shards.writer import entropy
from megatape.data.sources.source import CorpusCounts
from megatape.errors import UserError
from megatape.files import as_type, read_json

SUMMARY, TOKEN_COUNTS = "summary.json", "token_counts.npz"


@dataclass(frozen=True)
class WrittenSplit:
    """A split, how often each token occurs in it, int64 [vocab_size], and the table of its documents, if it has any."""

    content: Split
    token_counts: np.ndarray
    tables: list[DocumentTable]

    @property
    def files(self) -> list[str]:
        """Names of what was written."""
        return [shard.file for shard in self.content.shards] + [table.file for table in self.tables]


@dataclass(frozen=True)
class Content:
    """The content of summary.json: contents and tables of the splits, by name, and what the unit has read and skipped."""

    splits: dict[str, Split]
    tables: dict[str, list[DocumentTable]]
    counts: CorpusCounts


@dataclass(frozen=True)
class Summary:
    """What a unit has added to each split, and what it has read and skipped."""

    splits: dict[str, WrittenSplit]
    counts: CorpusCounts

    def save(self, folder: Path) -> None:
        """Write it beside the shards."""
        arrays: dict[str, Any] = {name: split.token_counts for name, split in self.splits.items()}
        np.savez_compressed(folder / TOKEN_COUNTS, **arrays)
        splits = {name: split.content for name, split in self.splits.items()}
        content = Content(splits, {name: split.tables for name, split in self.splits.items()}, self.counts)
        (folder / SUMMARY).write_text(json.dumps(asdict(content)), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Summary":
        """Of a finished unit. Raises OSError, or UserError if it cannot be read."""
        try:
            content = as_type(read_json(folder / SUMMARY), Content)
            with np.load(folder / TOKEN_COUNTS, allow_pickle=False) as token_counts:
                splits = {
                    name: WrittenSplit(split, token_counts[name], content.tables[name])
                    for name, split in content.splits.items()
                }
            return cls(splits, content.counts)
        except (ValueError, KeyError, EOFError, NotImplementedError, BadZipFile, zlib.error) as error:
            raise UserError(f"{folder}: corrupted ({error!r}): remove it, and the same command prepares it again") from error


def merged(parts: list[WrittenSplit]) -> Split:
    """The split that consists of these, in order."""
    contents = [part.content for part in parts]
    return Split(
        documents=sum(content.documents for content in contents),
        tokens=sum(content.tokens for content in contents),
        text_bytes=sum(content.text_bytes for content in contents),
        unigram_entropy=entropy(np.sum([part.token_counts for part in parts], axis=0)),
        shards=[shard for content in contents for shard in content.shards],
    )


def check_filled(splits: dict[str, Split], counts: CorpusCounts, validation_share: float) -> None:
    """Raise UserError if a split has no tokens."""
    for name, split in splits.items():
        if split.tokens == 0:
            raise UserError(
                f"the {name} split got none of the {counts.documents} documents at `validation_share` {validation_share}: "
                "change the share or give more documents"
                if validation_share
                else f"the {name} split got no documents of its own: give other `input` or `validation_input`"
            )
