"""Options of a preparation, shared by the command and its workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.io.listing import SkippedFiles
from megatape.data.prepare.shared_folder.plan import Plan
from megatape.data.shards.entries import TokenizerEntry
from megatape.data.sources.source import Source
from megatape.data.sources.units import UNIT_BYTES, Unit
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError, flag

NOTHING_SKIPPED: Mapping[str, SkippedFiles] = {}
# Characters tokenized at a time, enough to keep all threads busy.
BATCH_CHARACTERS = 4_000_000
# Memory for comparing documents.
COMPARISON_BYTES = 4 * 2**30


@dataclass(frozen=True)
class PreparationOptions:
    """Documents to prepare, and how.

    Attributes:
        source: Document source.
        validation_share: Share of documents to hold out for validation, if the source has no validation inputs.
        tokenizer: Tokenizer for the data. None: train one on the source.
        vocab_size: Vocabulary size of a trained tokenizer.
        cleaning: Rules that drop or edit documents.
        keep_documents: Whether to write the texts of kept and dropped documents as well (documents.py).
        batch_characters: Characters tokenized at a time. It does not affect the result.
        comparison_bytes: Memory of a process for comparing documents. It does not affect the result.
    """

    source: Source
    validation_share: float
    tokenizer: Tokenizer | None
    vocab_size: int
    cleaning: Cleaning = field(default_factory=Cleaning)
    keep_documents: bool = False
    batch_characters: int = BATCH_CHARACTERS
    comparison_bytes: int = COMPARISON_BYTES

    def __post_init__(self) -> None:
        assert set(self.cleaning.needs) <= set(self.source.fields), "a rule needs a field that the source does not read"
        near = self.cleaning.near_duplicates
        if near is not None and near.folders and self.source.max_documents is not None:
            raise UserError(
                f"{flag('max_documents')} {self.source.max_documents} and folders of {flag('rule')} near_duplicates: documents "
                "are dropped after the last one is read, so their number is unknown: remove one of the two"
            )

    @property
    def unit_bytes(self) -> int:
        return self.source.unit_bytes or UNIT_BYTES

    def plan(self, units: Sequence[Unit], tokenizer: Tokenizer, skipped: Mapping[str, SkippedFiles] = NOTHING_SKIPPED) -> Plan:
        """Return the plan for these units.

        Args:
            units: Units of the source.
            tokenizer: The user's tokenizer, or a trained one.
            skipped: Result of `Source.skipped_files`.
        """
        validation_share = self.validation_share
        if self.source.validation:
            validation_share = 0.0
        trained_vocab_size = None
        if self.tokenizer is None:
            trained_vocab_size = self.vocab_size
        return Plan(
            source=self.source.describe(),
            units=units,
            validation_share=validation_share,
            tokenizer=TokenizerEntry.of(tokenizer),
            trained_vocab_size=trained_vocab_size,
            drop_duplicates=self.cleaning.drop_duplicates,
            rules=self.cleaning.describe(),
            unit_bytes=self.unit_bytes,
            keep_documents=self.keep_documents,
            skipped=dict(skipped),
        )
