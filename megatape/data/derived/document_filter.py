"""Selects documents by their rows in the document tables."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from megatape.data.cleaning.word_runs import FACTOR
from megatape.data.shards.tables.document_tables import DOMAIN
from megatape.errors import UserError, content_errors, flag


@dataclass(frozen=True)
class DocumentFilter:
    """Conditions on documents.

    Attributes:
        domain: Domains as named by `megatape data report`; empty: any.
        place: Prefix of the location in the source, the column `place` of the tables.
        min_tokens: Minimum number of tokens, including control tokens.
        max_tokens: Maximum number of tokens. None: unlimited.
        score: Cleaning rule giving the score; empty: none.
        min_score: Minimum score.
        share: Share of all documents, selected by text hash. A larger share contains a smaller one.

    Raises:
        UserError: There is a minimum score, but no rule.
    """

    domain: tuple[str, ...] = ()
    place: str = ""
    min_tokens: int = 1
    max_tokens: int | None = None
    score: str = ""
    min_score: float = 0.0
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.min_score and not self.score:
            raise UserError(f"{flag('min_score')} {self.min_score} needs {flag('score')}, the rule whose score it bounds")

    def describe(self) -> dict[str, Any]:
        """Return the conditions as JSON."""
        options = asdict(self)
        options["domain"] = list(self.domain)
        return options

    def matches(self, rows: Any, split: str) -> np.ndarray:
        """Return whether each document meets all conditions, bool [documents].

        Args:
            rows: Document table, a pyarrow.Table.
            split: Description of its split, for errors.

        Raises:
            UserError: The table lacks these scores, or hashes.
        """
        from pyarrow import array, compute

        tokens = rows["tokens"].to_numpy()
        matches: np.ndarray = tokens >= self.min_tokens
        if self.max_tokens is not None:
            matches &= tokens <= self.max_tokens
        matches &= compute.starts_with(rows["place"], self.place).to_numpy()
        if self.domain:
            match = compute.extract_regex(compute.utf8_lower(rows["url"]), DOMAIN)
            domains = compute.struct_field(match, "domain")
            matches &= compute.is_in(domains, value_set=array(self.domain)).to_numpy()
        lack = f"{split}: its tables lack what {flag('score')} or {flag('share')} reads"
        with content_errors(lack, "name another rule, or prepare it again", (KeyError, TypeError, ValueError)):
            if self.score:
                scores = [json.loads(text)[self.score] for text in rows["scores"].to_pylist()]
                matches &= [score >= self.min_score for score in scores]
            if self.share < 1:
                # Mixing the hash makes the selection independent of the split, which the hash decided as well.
                mixed_hashes = rows["hash"].to_numpy() * FACTOR
                matches &= mixed_hashes < np.uint64(self.share * 2**64)
        return matches
