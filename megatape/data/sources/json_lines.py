"""Lines of JSON with a field of text, as files of C4, of a preparation that has kept its documents, or of any other name."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath
from posixpath import dirname, join  # of paths and URLs
from typing import Any

import orjson

from megatape.data.io.records import LARGEST_RECORD_BYTES, RecordCounts, read_records
from megatape.data.io.remote import file_states, find_files, open_file
from megatape.data.shards.index import INDEX_FILE
from megatape.data.sources.source import Document, Reader, Source, documents_of
from megatape.data.sources.units import Unit, grouped
from megatape.errors import UserError

DOCUMENTS, SUFFIX = "documents", ".jsonl.zst"  # of the files of documents that a preparation has kept


class JsonLines(Reader):
    """Files of folders that are named like lines of JSON, and files of any name."""

    patterns = ("*.jsonl", "*.jsonl.gz", "*.jsonl.zst", "*.json.gz", "*.json.zst")
    divides = True
    has_fields = True

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        for name in unit.inputs:
            yield from documents_of(read_records(name, source.max_record_bytes, counts, unit.begin, unit.end), source, counts)


class C4(JsonLines):
    """The training files of C4's own layout; as --validation-input its validation files."""

    def units(self, source: Source, inputs: tuple[str, ...], option: str = "input") -> list[Unit]:
        split = "train" if option == "input" else "validation"
        pattern = f"c4-{split}.*-of-*.json.gz"
        files = find_files(inputs, pattern, recursive=False, option=option, partial=source.partial)
        return grouped(files, divided=True, unit_bytes=source.unit_bytes)


class Documents(JsonLines):
    """Folders that `prepare corpus --keep-documents` has written: clean documents with their places and scores.

    Each file is a unit, as it was when it was written, and so gives the same shards.
    """

    def units(self, source: Source, inputs: tuple[str, ...], option: str = "input") -> list[Unit]:
        if source.max_documents is not None and len(inputs) > 1:
            raise UserError(f"max_documents: `source` documents takes one `input` with it, got {len(inputs)}: give one")
        files = _document_files(inputs, option)
        splits = ["".join(PurePath(file).name.removesuffix(SUFFIX).split("-")[2:]) for file in files]
        if "validation" in splits and option == "input" and (source.validation or source.max_documents is not None):
            file = files[splits.index("validation")]
            raise UserError(f"{file} is held out: with max_documents or `validation_input` give `input` training files alone")
        states = zip(files, splits, file_states(files), strict=True)
        return [Unit((file,), state.size, split=split, versions=(state.version,)) for file, split, state in states]

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        wanted = replace(source, fields=(*source.fields, "place", "scores"))
        for name in unit.inputs:
            records = read_records(name, LARGEST_RECORD_BYTES, counts)  # a line is longer than its text
            for document in documents_of(records, wanted, counts):
                place, scores = document.fields["place"], document.fields["scores"]
                yield document._replace(place=str(place), scores=scores if isinstance(scores, dict) else {})

    def describe(self, source: Source) -> dict[str, Any]:
        indices = []
        for folder in dict.fromkeys(dirname(file) for file in _document_files(source.inputs + source.validation)):
            with open_file(join(folder, INDEX_FILE)) as file:
                indices.append(orjson.loads(file.read()))
        return {"cleaned": [{"source": index["source"], "rules": index.get("rules", [])} for index in indices]}


def _document_files(inputs: tuple[str, ...], option: str = "input") -> list[str]:
    return find_files(inputs, f"{DOCUMENTS}-*{SUFFIX}", recursive=False, option=option)
