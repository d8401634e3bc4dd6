"""Decides which documents of a source to keep, in any number of processes.

Rules about single texts apply first, in the user's order, each to the text returned by the rule before it. Exact duplicates are
dropped next, then near duplicates of kept documents.

With a single unit, one process keeps hashes and keys in memory (`OnePass`). With several units, or other folders to compare
with, the first pass over each unit stores its hashes and keys (first_pass.py). The decision pass then compares those of all
units (comparison.py) before any document is written.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from megatape.data.cleaning.near_duplicates.near_duplicates import Bucket, NearDuplicates
from megatape.data.cleaning.rule import DocumentDropped, DocumentRule, Rule, ScoreRule, UnitRule
from megatape.data.printable import printable
from megatape.data.shards.hashes import document_hash
from megatape.data.sources.document import Decision, Document, Edit

LOG = logging.getLogger(__name__)

DUPLICATES = "duplicates"
NEAR_DUPLICATES = "near_duplicates"
# Processor seconds for one document above which a warning names the rule and the document.
SLOW_SECONDS = 5.0


@dataclass(frozen=True)
class Cleaning:
    """Cleaning rules of a source.

    Attributes:
        rules: Rules by name. Near duplicates are dropped last, wherever the rule stands.
        drop_duplicates: Whether to drop exact duplicates.
        slow_seconds: Processor seconds for one document above which a warning names the rule and the document.
        on_seconds: Called with the name of a rule and its processor seconds for a document, or None.
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)
    drop_duplicates: bool = True
    slow_seconds: float = SLOW_SECONDS
    on_seconds: Callable[[str, float], None] | None = None

    @property
    def near_duplicates(self) -> NearDuplicates | None:
        """The rule about near duplicates, or None."""
        for rule in self.rules.values():
            if isinstance(rule, NearDuplicates):
                return rule
        return None

    @property
    def needs(self) -> tuple[str, ...]:
        """Record fields that the rules read, for `Source.fields`."""
        names: dict[str, None] = {}
        for rule in self.rules.values():
            names.update(dict.fromkeys(rule.needs))
        return tuple(names)

    def start_unit(self) -> "Cleaning":
        """Return the same rules with fresh state, for the documents of one unit, in order."""
        rules: dict[str, Rule] = {}
        for name, rule in self.rules.items():
            if isinstance(rule, UnitRule):
                rule = rule.begin()
            rules[name] = rule
        return replace(self, rules=rules)

    @property
    def compared_columns(self) -> list[str]:
        """The rule comparing each column of a unit's sorted keys: a column for each band, and one for hashes."""
        columns = []
        if self.near_duplicates is not None:
            columns += [NEAR_DUPLICATES] * self.near_duplicates.banding.bands
        if self.drop_duplicates:
            columns.append(DUPLICATES)
        return columns

    @property
    def comparing_rules(self) -> list[str]:
        """Rules comparing documents. A document dropped by two rules counts for the last one."""
        return list(dict.fromkeys(self.compared_columns))

    def decide(self, document: Document) -> Decision:
        """Decide about a document by the rules about single documents."""
        edits: tuple[Edit, ...] = ()
        scores = document.scores
        for name, rule in self.rules.items():
            if not isinstance(rule, DocumentRule | ScoreRule):
                continue
            text = document.text
            try:
                with self.watch(name, document):
                    if isinstance(rule, ScoreRule):
                        score = rule.score(text)
                        scores = {**scores, name: score}
                        if score < rule.minimum:
                            raise DocumentDropped(f"below {rule.minimum}")
                    else:
                        text = rule.clean(document)
            except DocumentDropped as reason:
                return Decision(None, name, str(reason), edits, scores)
            if not text or text.isspace():
                return Decision(None, name, "nothing left", edits, scores)
            if text != document.text:
                edits += (Edit(name, text),)
                document = document._replace(text=text)
        content = document.text.encode()
        return Decision(document.text, "", "", edits, scores, content, document_hash(content))

    @contextmanager
    def watch(self, rule: str, document: Document) -> Iterator[None]:
        """Measure a rule, and name the document for which it is slow or fails. No decision depends on time."""
        start = time.thread_time()
        try:
            yield
        except DocumentDropped:
            raise
        except Exception as error:
            error.add_note(f"rule {rule} was applied to {printable(document.location)}")
            raise
        finally:
            seconds = time.thread_time() - start
            if self.on_seconds is not None:
                self.on_seconds(rule, seconds)
            if seconds > self.slow_seconds:
                location = printable(document.location)
                length = len(document.text)
                LOG.warning(f"rule {rule} took {seconds:.0f} s for {location}, a document of {length:,} characters")

    def describe(self) -> list[dict[str, Any]]:
        """Return everything that affects the rules' results, as JSON.

        Raises:
            ModuleNotFoundError: A package is missing.
        """
        return [{"rule": name, **rule.describe()} for name, rule in self.rules.items()]


class OnePass:
    """Decides about the documents of a single unit, in order, remembering them in memory."""

    def __init__(self, cleaning: Cleaning) -> None:
        self._cleaning = cleaning.start_unit()
        self._near = cleaning.near_duplicates
        self._hashes: set[bytes] = set()
        num_bands = 0
        if self._near is not None:
            num_bands = self._near.banding.bands
        # For each band: key -> bucket.
        self._bands = [defaultdict[int, Bucket](list) for _ in range(num_bands)]
        # Number of a compared document -> whether it is kept.
        self._is_kept = bytearray()

    def decide(self, document: Document) -> Decision:
        decision = self._cleaning.decide(document)
        if decision.text is None:
            return decision
        if self._cleaning.drop_duplicates:
            if decision.digest in self._hashes:
                return decision._replace(text=None, rule=DUPLICATES)
            self._hashes.add(decision.digest)
        if self._near is not None and self._is_near_duplicate(self._near, decision.text, document):
            return decision._replace(text=None, rule=NEAR_DUPLICATES)
        return decision

    def _is_near_duplicate(self, near: NearDuplicates, text: str, document: Document) -> bool:
        """Whether a text is a near duplicate of a kept text. Remembers the text."""
        with self._cleaning.watch(NEAR_DUPLICATES, document):
            signature = near.signature(text)
        number = len(self._is_kept)
        similar = set[int]()
        for buckets, key in zip(self._bands, signature.keys.tolist(), strict=True):
            similar.update(near.matches_bucket(number, signature.shingles, buckets[key]))
        is_near_duplicate = any(self._is_kept[earlier] for earlier in similar)
        self._is_kept.append(not is_near_duplicate)
        return is_near_duplicate
