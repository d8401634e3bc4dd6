"""Reads data sets of the Hugging Face hub, streamed by `datasets`."""

from collections.abc import Iterator
from typing import Any

from megatape.data.counts import RecordCounts
from megatape.data.io.records import Record
from megatape.data.sources.document import Document
from megatape.data.sources.fields import documents_of
from megatape.data.sources.source import Reader, Source
from megatape.data.sources.units import Unit
from megatape.errors import UserError, flag


class Hub(Reader):
    """One split of a data set with a text field. If it has several files, each is a unit."""

    takes = "name"
    has_subsets = True
    has_fields = True

    def units(self, source: Source, inputs: tuple[str, ...], option: str = "input") -> list[Unit]:
        try:
            num_files = _stream(source).num_shards
        except Exception as error:
            raise _failure(source, 0, error) from error
        if num_files <= 1:
            return [Unit(inputs, 0)]
        return [Unit(inputs, 0, file, file + 1) for file in range(num_files)]

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        return documents_of(stream_records(source, unit, select_text=True), source, counts)


def stream_records(source: Source, unit: Unit, select_text: bool = False) -> Iterator[Record]:
    """Yield the records of a unit.

    Args:
        source: Source with the options of the data set.
        unit: Unit to read.
        select_text: Whether to read only text, URL and the fields that rules need.

    Raises:
        UserError: The data set cannot be read.
    """
    num_records = 0
    try:
        stream = _stream(source, select_text)
        part = unit.inputs[0]
        if unit.end is not None:
            stream = stream.shard(stream.num_shards, unit.begin)
            part = f"{part} file {unit.begin}"
        for num_records, record in enumerate(stream, start=1):
            yield Record(f"{part} record {num_records}", record)
    except Exception as error:
        raise _failure(source, num_records, error) from error


def _stream(source: Source, select_text: bool = False) -> Any:
    # The import takes more than a second, and only this source needs it.
    from datasets import load_dataset

    stream = load_dataset(source.inputs[0], source.subset, split=source.split, streaming=True)
    if not select_text:
        return stream
    names = [source.text_field, "url"]
    names += [path.partition(".")[0] for path in source.fields]
    present = stream.column_names or ()
    selected = [name for name in dict.fromkeys(names) if name in present]
    if source.text_field not in selected:
        return stream
    return stream.select_columns(selected)


def _failure(source: Source, num_documents: int, error: Exception) -> UserError:
    """Return a single error for the many that `datasets` passes on from its parsers, cache and network client."""
    reason = " ".join(str(error).split())[:300]
    return UserError(
        f"{flag('source')} hub {source.inputs[0]} (subset {source.subset}, split {source.split}) failed after {num_documents} "
        f"documents: {type(error).__name__}: {reason}. Streaming needs the network, for private and gated data sets "
        "`hf auth login` or HF_TOKEN, and files without malformed lines that all have the same fields; otherwise download the "
        f"files and use {flag('source')} c4, jsonl or parquet, which count bad records and continue"
    )
