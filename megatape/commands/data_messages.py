"""Messages of commands that read or write data."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from megatape.errors import UserError
from megatape.utils.masking import mask
from megatape.utils.units import plural

if TYPE_CHECKING:
    from tqdm import tqdm

    from megatape.data.counts import RecordCounts
    from megatape.data.io.listing import SkippedFiles
    from megatape.data.shards.entries import Index
    from megatape.data.tokenizers.tokenizer import Tokenizer


def read_tokenizer(path: Path) -> "Tokenizer":
    """The tokenizer in a file or folder; warns if models that train with it cannot be exported.

    Raises FileNotFoundError or UserError.
    """
    from megatape.data.tokenizers.files import load_tokenizer
    from megatape.hf.tokenizer import special_tokens

    tokenizer = load_tokenizer(path)
    try:
        special_tokens(tokenizer)
    except UserError as error:
        print(f"warning: a model trained on this data cannot be exported. {error}", file=sys.stderr)
    return tokenizer


def report_skipped(counts: "RecordCounts", max_record_bytes: int) -> None:
    """Print which records were skipped, if any."""
    if counts.too_long:
        print(
            f"skipped {plural(counts.too_long, 'record')} longer than {max_record_bytes:,} bytes (raise --max-record-bytes to "
            f"keep them), the first one: {counts.first_too_long}"
        )
    if counts.unverified:
        noun = "file has" if counts.unverified == 1 else "files have"
        print(
            f"{counts.unverified:,} compressed {noun} no checksums, so damage may go unnoticed (pack with zstd --check, or xz "
            f"--check=crc64), the first one: {counts.first_unverified}"
        )
    if counts.bad:
        examples = map(mask, counts.bad_examples)
        print(f"skipped {plural(counts.bad, 'bad record')}, the first ones:", *examples, sep="\n  ")


def report_skipped_files(skipped: "Mapping[str, SkippedFiles]") -> None:
    """Print the files that are skipped because of their names, by input."""
    from megatape.data.printable import printable

    for name, files in skipped.items():
        print(f"{mask(printable(name))}: {files}")


def report_written(index: "Index", output: Path) -> None:
    """Print the splits of a data directory that was written."""
    for name, split in index.splits.items():
        documents = plural(split.documents, "document")
        tokens = plural(split.tokens, "token")
        print(f"{name}: {documents}, {tokens}, {plural(len(split.shards), 'shard')}")
    print(f"wrote {output}")


def token_bar(what: str) -> "tqdm[NoReturn]":
    """A progress bar of tokens."""
    from tqdm import tqdm

    return tqdm(desc=what, unit=" tokens", unit_scale=True, delay=0.5)
