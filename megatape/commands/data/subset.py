"""Selects documents of a data directory for a new one."""

from typing import Annotated

from pydantic import Field

from megatape.commands.cli.data_messages import report_written, token_bar
from megatape.commands.options.data_options import DataDirectoryOptions, NewDataOptions
from megatape.utils.values.options import Count, option

EXAMPLE = "megatape data subset data/c4 --output data/c4_long --min-tokens 8192"


class Options(NewDataOptions, DataDirectoryOptions):
    """A data directory, and conditions for the documents to select.

    Attributes:
        domain: select documents from these domains, as listed by `megatape data report`
        place: select documents whose location in the source begins with PREFIX
        min_tokens: select documents with at least N tokens, including control tokens
        max_tokens: select documents with at most N tokens
        score: cleaning rule whose score --min-score compares
        min_score: select documents with a score of at least X; requires --score
        share: select a random fraction of the documents, by a hash of the text; a larger fraction
            contains a smaller one
    """

    domain: tuple[str, ...] = option((), metavar="DOMAIN")
    place: str = option("", metavar="PREFIX")
    min_tokens: Count = option(1, metavar="N")
    max_tokens: Count | None = option(None, metavar="N")
    score: str = option("", metavar="RULE")
    min_score: float = option(0.0, metavar="X")
    share: Annotated[float, Field(gt=0, le=1)] = option(1.0, metavar="P")


def run(options: Options) -> None:
    """Write the data directory."""
    from megatape.data.derived.document_filter import DocumentFilter
    from megatape.data.derived.subset import subset

    conditions = DocumentFilter(
        domain=options.domain,
        place=options.place,
        min_tokens=options.min_tokens,
        max_tokens=options.max_tokens,
        score=options.score,
        min_score=options.min_score,
        share=options.share,
    )
    with token_bar("written") as bar:
        index = subset(options.directory, options.output, conditions, bar.update)
    report_written(index, options.output)
