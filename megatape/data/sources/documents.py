"""The documents that `megatape prepare corpus --keep-documents` has cleaned, by the folder that it wrote."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson

from megatape.data.io.records import LARGEST_RECORD_BYTES, RecordCounts, read_records
from megatape.data.io.remote import file_states, find_files, open_file
from megatape.data.sources.json_lines import JsonLines
from megatape.data.sources.source import Document, Source, documents_of
from megatape.data.sources.units import Unit
from megatape.errors import MissingPath, UserError

DOCUMENTS, SUFFIX = "documents", ".jsonl.zst"
CLEANING = "cleaning.json"  # beside the documents: their source and the rules


class Documents(JsonLines):
    """They keep their places and scores. Each file is a unit, as when it was written, and so gives the same shards."""

    def units(self, source: Source, inputs: tuple[str, ...], option: str = "input") -> list[Unit]:
        folders = [f"{name.rstrip('/')}/{DOCUMENTS}/" for name in inputs]
        if source.max_documents is not None and len(inputs) > 1:
            raise UserError(f"max_documents: `source` documents takes one `input` with it, got {len(inputs)}: give one")
        try:
            files = find_files(folders, f"*{SUFFIX}", recursive=False, option=option)
        except MissingPath as error:
            raise MissingPath(f"{error}: `keep_documents` writes them, prepare the data again") from None
        splits = [file.removesuffix(SUFFIX).rpartition("/")[2].partition("-")[2] for file in files]
        states = zip(files, splits, file_states(files), strict=True)
        return [Unit((file,), state.size, split=split, versions=(state.version,)) for file, split, state in states]

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        wanted = replace(source, fields=(*source.fields, "place", "scores"))
        for name in unit.inputs:
            records = read_records(name, LARGEST_RECORD_BYTES, counts)  # a line is longer than its text
            for document in documents_of(records, wanted, counts):
                place, scores = document.fields["place"], document.fields["scores"]
                scores = scores if isinstance(scores, dict) else {}
                yield document._replace(place=str(place or document.place), scores=scores)

    def describe(self, source: Source) -> dict[str, Any]:
        """How they were cleaned, and what they are from."""
        files = [f"{name.rstrip('/')}/{DOCUMENTS}/{CLEANING}" for name in source.inputs + source.validation]
        return {"cleaning": [orjson.loads(open_file(file).read()) for file in files]}
