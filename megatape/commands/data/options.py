"""Groups of options of commands that read or write data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, Field

from megatape.commands.cli.shared_options import ImportOptions, describe, descriptions
from megatape.commands.data.messages import report_skipped_files
from megatape.config.kinds import Registered
from megatape.data.sources.limits import MAX_BAD_FRACTION, MAX_RECORD_BYTES, MAX_SKIPPED_FRACTION
from megatape.registry import SOURCES, TOKEN_FORMATS
from megatape.utils.options import CommandOptions, Count, option

if TYPE_CHECKING:
    from megatape.data.sources.source import Source


# Type of source.
SourceKind = Annotated[str, AfterValidator(Registered(SOURCES))]
# Format of token files written by other systems.
TokenFormat = Annotated[
    str,
    AfterValidator(Registered(TOKEN_FORMATS)),
    option(description=describe(TOKEN_FORMATS)),
]
# Share of at most 1. Each option has its own minimum.
Share = Annotated[float, Field(le=1)]


class RecordLimitOptions(CommandOptions):
    """Limits for commands that read lines of JSON.

    Attributes:
        max_record_bytes: skip longer lines and text files; memory grows with it
        max_bad_fraction: end if more of the records are malformed or too long
        max_skipped_fraction: end if more of a folder's files or bytes, or of the samples of tars,
            are skipped because of file names
    """

    max_record_bytes: Count = option(MAX_RECORD_BYTES, metavar="N")
    max_bad_fraction: Share = option(MAX_BAD_FRACTION, ge=0, metavar="P")
    max_skipped_fraction: Share = option(MAX_SKIPPED_FRACTION, ge=0, metavar="P")


class SourceOptions(RecordLimitOptions, ImportOptions):
    """Where documents come from.

    Attributes:
        source: type of source, see below (docs/prepare_text.md)
        input: files, folders and URLs; for hub, the name of a dataset
        subset: configuration of a hub dataset
        split: split of a hub dataset
        text_field: field of records that has the text
        partial: accept folders that lack files of a set such as c4-train.00000-of-01024.json.gz
        expect: end if files are missing or differ from this list of sizes or checksums, of lines as
            sha256sum prints or SIZE NAME
    """

    lists: ClassVar = {"sources": descriptions(SOURCES)}

    source: SourceKind
    input: tuple[str, ...] = ()
    subset: str | None = None
    split: str = "train"
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
            max_documents: Number of documents after which reading stops. None reads all.
            unit_bytes: Size of the units that are read. None: the default of the source.
            fields: Fields of the records that are read beside the text.

        Raises:
            UserError: Options contradict each other, or the files are not the expected ones.
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
    """The size of the validation split.

    Attributes:
        validation_share: fraction of documents, or of prompts, in the validation split
    """

    validation_share: Annotated[float, Field(gt=0, lt=1)] = option(0.02, metavar="P")


class NewDataOptions(CommandOptions):
    """A data directory to write.

    Attributes:
        output: data directory to write
    """

    output: Path = option(metavar="FOLDER")
