"""Options that several commands share: data directories, sources and token files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, Field

from megatape.commands.cli.data_messages import report_skipped_files
from megatape.commands.options.shared_options import ImportOptions, descriptions
from megatape.config.kinds import Registered
from megatape.data.sources.limits import MAX_BAD_FRACTION, MAX_RECORD_BYTES, MAX_SKIPPED_FRACTION
from megatape.registry import SOURCES, TOKEN_FORMATS
from megatape.utils.values.options import CommandOptions, Count, option

if TYPE_CHECKING:
    from megatape.data.sources.source import Source


# Type of a source.
SourceKind = Annotated[str, AfterValidator(Registered(SOURCES))]
# Share of at most 1. Each option has its own minimum.
Share = Annotated[float, Field(le=1)]


class DataDirectoryOptions(CommandOptions):
    """An existing data directory.

    Attributes:
        directory: data directory
    """

    directory: Path = option(positional=True, metavar="FOLDER")


class TokenFormatOptions(CommandOptions):
    """Format of another system's token files.

    Attributes:
        format: format of the token files, see below
    """

    lists: ClassVar = {"formats": descriptions(TOKEN_FORMATS)}

    format: Annotated[str, AfterValidator(Registered(TOKEN_FORMATS))]


class RecordLimitOptions(CommandOptions):
    """Limits for reading records.

    Attributes:
        max_record_bytes: skip lines and text files that are longer; memory grows with this limit
        max_bad_fraction: fail if a larger fraction of the records is malformed or too long
        max_skipped_fraction: fail if a larger fraction of a folder's files or bytes, or of a tar's
            samples, is skipped because of file names
    """

    max_record_bytes: Count = option(MAX_RECORD_BYTES, metavar="N")
    max_bad_fraction: Share = option(MAX_BAD_FRACTION, ge=0, metavar="P")
    max_skipped_fraction: Share = option(MAX_SKIPPED_FRACTION, ge=0, metavar="P")


class HubOptions(CommandOptions):
    """Part of a dataset on the Hugging Face hub.

    Attributes:
        subset: with --source hub: configuration of the dataset
        split: with --source hub: split of the dataset
    """

    subset: str | None = option(None, metavar="NAME")
    split: str = option("train", metavar="NAME")


class SourceOptions(HubOptions, RecordLimitOptions, ImportOptions):
    """Source of documents.

    Attributes:
        source: type of the source, see below (docs/prepare_text.md)
        input: files, folders and URLs; with --source hub, the name of a dataset
        text_field: record field that contains the text
        partial: accept folders that lack files of a set such as c4-train.00000-of-01024.json.gz
        expect: fail if files are missing or differ from this list, with lines in the format of
            sha256sum or SIZE NAME
    """

    lists: ClassVar = {"sources": descriptions(SOURCES)}

    source: SourceKind
    input: tuple[str, ...] = option((), metavar="PATH")
    text_field: str = option("text", metavar="NAME")
    partial: bool = False
    expect: Path | None = option(None, metavar="FILE")

    def read_source(
        self,
        validation: tuple[str, ...] = (),
        max_documents: int | None = None,
        unit_bytes: int | None = None,
        fields: tuple[str, ...] = (),
    ) -> "Source":
        """Return the source, and print the files that are skipped because of their names.

        Args:
            validation: Inputs of the validation split.
            max_documents: Maximum number of documents to read. None reads all.
            unit_bytes: Unit size in bytes. None: default of the source.
            fields: Record fields to read in addition to the text.

        Raises:
            UserError: Options contradict each other, or the files differ from the expected ones.
        """
        from megatape.data.sources.expected import check_expected
        from megatape.data.sources.source import Source

        source = Source(
            kind=self.source,
            inputs=self.input,
            subset=self.subset,
            split=self.split,
            validation=validation,
            text_field=self.text_field,
            fields=fields,
            max_documents=max_documents,
            max_record_bytes=self.max_record_bytes,
            max_bad_fraction=self.max_bad_fraction,
            max_skipped_fraction=self.max_skipped_fraction,
            partial=self.partial,
            unit_bytes=unit_bytes,
        )
        if self.expect is not None:
            check_expected(source, self.expect)
        report_skipped_files(source.skipped_files())
        return source


class HeldOutOptions(CommandOptions):
    """Size of the validation split.

    Attributes:
        validation_share: fraction of documents or prompts to hold out for validation
    """

    validation_share: Annotated[float, Field(gt=0, lt=1)] = option(0.02, metavar="P")


class NewDataOptions(CommandOptions):
    """A new data directory.

    Attributes:
        output: data directory to write
    """

    output: Path = option(metavar="FOLDER")
