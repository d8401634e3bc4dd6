"""A corpus to prepare, and the plan of its data directories."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.shards.index import TokenizerEntry
from megatape.data.sources.source import Source
from megatape.data.sources.units import UNIT_BYTES, Unit
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError

TOKENS = "tokens"  # the rule about the length of documents
VERSION = 6  # of how units are prepared: a folder that another version has begun is refused


@dataclass(frozen=True)
class Plan:
    """Everything that decides the bytes of the result.

    Attributes:
        source: Record of the source in the index.
        units: All parts of the source, in order.
        validation_share: Share of the documents in the validation split; 0 if it has its own inputs.
        tokenizers: By the name of the data directory below the output, which is empty where there is only one.
        trained_vocab_size: Size of a tokenizer that was trained on the source; None if it was given.
        drop_duplicates: Whether documents that equal an earlier one are dropped.
        rules: Other rules of cleaning, with their options and the versions of their packages.
        unit_bytes: Size of units.
    """

    source: dict[str, Any]
    units: list[Unit]
    validation_share: float
    tokenizers: dict[str, TokenizerEntry]
    trained_vocab_size: int | None
    drop_duplicates: bool
    rules: list[dict[str, Any]]
    version: int = VERSION
    unit_bytes: int = UNIT_BYTES

    def difference(self, other: "Plan", used: set[int]) -> str | None:
        """The first difference of another plan, with both values, if the results of the `used` units do not fit it.

        A changed file is no difference while its unit has no result: a corrupted file was replaced.
        """
        names = "version", "source", "validation_share", "trained_vocab_size", "drop_duplicates", "rules", "tokenizers"
        for name in (*names, "unit_bytes"):
            if (mine := getattr(self, name)) != (its := getattr(other, name)):
                return f"{name}: {mine}, now {its}"
        if len(self.units) != len(other.units):
            return f"inputs: {len(self.units)} parts, now {len(other.units)}"
        for number, (mine, its) in enumerate(zip(self.units, other.units, strict=True)):
            if mine != its and (number in used or replace(mine, num_bytes=its.num_bytes, versions=its.versions) != its):
                return f"inputs: {mine.difference(its)}"
        return None


@dataclass(frozen=True)
class Corpus:
    """Documents to prepare, and how.

    Attributes:
        source: Source of the documents.
        validation_share: Share of the documents in the validation split, if the source has no inputs for it.
        tokenizer: Tokenizer of the data, or several by the names of their data directories below the output. None: one is
            trained on the source.
        vocab_size: Number of tokens of a tokenizer to train.
        cleaning: Rules that drop or edit documents.
        min_tokens: Documents of fewer tokens, control tokens included, are dropped.
        max_tokens: Documents of more tokens are dropped; None: of no length.

    Raises:
        UserError: No document has so many tokens.
    """

    source: Source
    validation_share: float
    tokenizer: Tokenizer | Mapping[str, Tokenizer] | None
    vocab_size: int
    cleaning: Cleaning = field(default_factory=Cleaning)
    min_tokens: int = 1
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        assert set(self.cleaning.needs) <= set(self.source.fields), "a rule needs a field that the source does not read"
        if self.min_tokens < 1 or (self.max_tokens is not None and self.max_tokens < self.min_tokens):
            raise UserError(
                f"min_tokens is {self.min_tokens} and `max_tokens` {self.max_tokens}: no document has so many: give numbers "
                "from 1 on, the smaller one first"
            )

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """Tokenizers by the names of their data directories; the empty name is the output. Empty: one is to be trained."""
        if isinstance(self.tokenizer, Mapping):
            return dict(self.tokenizer)
        return {"": self.tokenizer} if self.tokenizer else {}

    def plan(self, units: list[Unit], tokenizers: Mapping[str, Tokenizer]) -> Plan:
        """The plan for these units of the source and these tokenizers, given or trained."""
        return Plan(
            source=self.source.describe(),
            units=units,
            validation_share=0.0 if self.source.validation else self.validation_share,
            tokenizers={name: TokenizerEntry.of(tokenizer) for name, tokenizer in tokenizers.items()},
            trained_vocab_size=None if self.tokenizers else self.vocab_size,
            drop_duplicates=self.cleaning.drop_duplicates,
            rules=[*self.cleaning.describe(), *self._lengths()],
            unit_bytes=self.source.unit_bytes or UNIT_BYTES,
        )

    def _lengths(self) -> list[dict[str, Any]]:
        """The record of `min_tokens` and `max_tokens` among the rules; empty if documents of any length are kept."""
        lengths = {"minimum": self.min_tokens, "maximum": self.max_tokens}
        return [] if lengths == {"minimum": 1, "maximum": None} else [{"rule": TOKENS, **lengths}]
