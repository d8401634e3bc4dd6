"""Lines of JSON with a text field: in C4's files, in documents kept by a preparation, or in any other files."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePath
from posixpath import basename, dirname
from typing import Any

from megatape.data.counts import RecordCounts
from megatape.data.io.files import LOCAL, file_states, is_url
from megatape.data.io.inputs import find_files, list_inputs
from megatape.data.io.listing import Listing
from megatape.data.io.records import JSON_LINES, LARGEST_RECORD_BYTES, read_records
from megatape.data.sources.document import Document
from megatape.data.sources.fields import documents_of
from megatape.data.sources.kept_documents import (
    DOCUMENTS,
    SUFFIX,
    check_content,
    check_count,
    check_files,
    kept_documents,
)
from megatape.data.sources.source import Reader, Source
from megatape.data.sources.units import Unit
from megatape.errors import UserError, flag

# File names of documents kept by a preparation.
PATTERN = f"{DOCUMENTS}-*{SUFFIX}"


class JsonLines(Reader):
    """Files named like lines of JSON in folders, and files given by name."""

    patterns = JSON_LINES
    divides = True
    has_fields = True

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        for name in unit.inputs:
            records = read_records(name, source.max_record_bytes, counts, unit.begin, unit.end)
            yield from documents_of(records, source, counts)


class C4(JsonLines):
    """Training files in C4's original layout; as --validation-input its validation files."""

    def listings(self, source: Source, inputs: tuple[str, ...], option: str = "input") -> list[Listing]:
        if option == "input":
            split = "train"
            other_split = "validation"
        else:
            split = "validation"
            other_split = "train"
        listings = list_inputs(inputs, f"c4-{split}.*-of-*.json.gz", recursive=False, option=option)
        other_names = f"c4-{other_split}."
        # Both splits share a folder, so files of the other split are not reported as skipped.
        return [listing.without(lambda name: name.startswith(other_names)) for listing in listings]


class Documents(JsonLines):
    """Folders written by `prepare corpus --keep-documents`: clean documents with their locations and scores.

    Each file is a unit, as in the preparation that wrote it, so the shards are the same. The files must match the index of
    their folder: none may be missing or come from another preparation.
    """

    def units(self, source: Source, inputs: tuple[str, ...], option: str = "input") -> list[Unit]:
        if source.max_documents is not None and len(inputs) > 1:
            raise UserError(
                f"{flag('max_documents')}: {flag('source')} documents takes one {flag('input')} with it, got {len(inputs)}: "
                "give one"
            )
        files = _document_files(inputs, option)
        _check_listed(files, inputs)
        splits = ["".join(PurePath(file).name.removesuffix(SUFFIX).split("-")[2:]) for file in files]
        if "validation" in splits and option == "input" and (source.validation or source.max_documents is not None):
            file = files[splits.index("validation")]
            raise UserError(
                f"{file} is held out: with max_documents or {flag('validation_input')} give {flag('input')} training files "
                "alone"
            )
        units = []
        for file, split, state in zip(files, splits, file_states(files), strict=True):
            units.append(Unit((file,), state.size, split=split, versions=(state.version,)))
        return units

    def listings(self, source: Source, inputs: tuple[str, ...], option: str = "input") -> list[Listing]:
        # Other files in these folders have no further documents.
        return [Listing(name, []) for name in inputs]

    def read(self, source: Source, unit: Unit, counts: RecordCounts) -> Iterator[Document]:
        source_with_fields = replace(source, fields=(*source.fields, "place", "scores"))
        for name in unit.inputs:
            entry = check_content(name)
            num_skipped = counts.skipped
            num_read = 0
            # A line is longer than its text, so max_record_bytes applies to the text alone.
            records = read_records(name, LARGEST_RECORD_BYTES, counts)
            for document in documents_of(records, source_with_fields, counts):
                num_read += 1
                location = document.fields["place"]
                scores = document.fields["scores"]
                if not isinstance(scores, dict):
                    scores = {}
                yield document._replace(location=str(location), scores=scores)
            check_count(name, entry, num_read + counts.skipped - num_skipped)

    def describe(self, source: Source) -> dict[str, Any]:
        folders = dict.fromkeys(dirname(file) for file in _document_files(source.all_inputs))
        cleaned = []
        for folder in folders:
            documents = kept_documents(folder)
            cleaned.append({"source": documents.source, "rules": documents.rules})
        return {"cleaned": cleaned}


def _check_listed(files: Sequence[str], inputs: Sequence[str]) -> None:
    """Raise UserError if a file is not in its folder's index, or if a folder among the inputs lacks a file."""
    names: defaultdict[str, set[str]] = defaultdict(set)
    for file in files:
        names[dirname(file)].add(basename(file))
    # Folders whose files are given by name.
    incomplete = set()
    for name in inputs:
        path = name.removeprefix(LOCAL)
        if fnmatchcase(basename(path), PATTERN):
            if not is_url(path):
                path = str(PurePath(path))
            incomplete.add(dirname(path))
    for folder, folder_names in names.items():
        check_files(folder, folder_names, is_complete=folder not in incomplete)


def _document_files(inputs: tuple[str, ...], option: str = "input") -> list[str]:
    return find_files(inputs, PATTERN, recursive=False, option=option)
