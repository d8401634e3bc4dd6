"""Messages of commands that read or write data."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from megatape.errors import UserError
from megatape.utils.text.units import plural
from megatape.utils.text.url_secrets import mask_secrets

if TYPE_CHECKING:
    from tqdm import tqdm

    from megatape.data.counts import RecordCounts
    from megatape.data.io.listing import SkippedFiles
    from megatape.data.shards.entries import Index
    from megatape.data.tokenizers.tokenizer import Tokenizer


def report_unexportable(tokenizer: "Tokenizer") -> None:
    """Print a warning if models trained with a tokenizer cannot be exported."""
    from megatape.hf.special_tokens import special_tokens

    try:
        special_tokens(tokenizer)
    except UserError as error:
        print(f"warning: a model trained on this data cannot be exported. {error}", file=sys.stderr)


def report_skipped(counts: "RecordCounts", max_record_bytes: int) -> None:
    """Print how many records were skipped and how many files lack checksums, with examples."""
    if counts.too_long:
        records = plural(counts.too_long, "record")
        print(
            f"skipped {records} longer than {max_record_bytes:,} bytes (raise --max-record-bytes to keep them), the first one: "
            f"{counts.first_too_long}"
        )
    if counts.unverified:
        files_have = plural(counts.unverified, "compressed file has", "compressed files have")
        print(
            f"{files_have} no checksums, so damage may go unnoticed (pack with zstd --check, or xz --check=crc64), the first "
            f"one: {counts.first_unverified}"
        )
    if counts.bad:
        records = plural(counts.bad, "bad record")
        print(f"skipped {records}, the first ones:")
        for example in counts.bad_examples:
            print(f"  {mask_secrets(example)}")


def report_skipped_files(skipped: "Mapping[str, SkippedFiles]") -> None:
    """Print the files that are skipped because of their names, by input."""
    from megatape.data.printable import printable

    for name, files in skipped.items():
        print(f"{mask_secrets(printable(name))}: {files}")


def report_written(index: "Index", output: Path) -> None:
    """Print the splits of the written data directory."""
    for name, split in index.splits.items():
        documents = plural(split.documents, "document")
        tokens = plural(split.tokens, "token")
        shards = plural(len(split.shards), "shard")
        print(f"{name}: {documents}, {tokens}, {shards}")
    print(f"wrote {output}")


def token_bar(action: str) -> "tqdm[NoReturn]":
    """Return a progress bar that counts tokens, labeled with a participle such as "written"."""
    from tqdm import tqdm

    return tqdm(desc=action, unit=" tokens", unit_scale=True, delay=0.5)
