"""Decides which documents of a source to keep, in any number of processes.

Rules about single texts apply first, in the user's order, each to the text returned by the rule before it. Exact duplicates are
dropped next, then near duplicates of kept documents.

With a single unit, one process keeps hashes and keys in memory (`OnePass`). With several units, the first pass over each stores
its hashes and keys (first_pass.py), and the decision pass compares those of all units (comparison.py) before any document is
written.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from megatape.data.cleaning.near_duplicates import Bucket, NearDuplicates
from megatape.data.cleaning.rule import DocumentDropped, DocumentRule, Rule, ScoreRule, UnitRule
from megatape.data.printable import printable
from megatape.data.shards.hashes import document_hash
from megatape.data.sources.document import Decision, Document, Edit

LOG = logging.getLogger(__name__)

DUPLICATES = "duplicates"
NEAR_DUPLICATES = "near_duplicates"
# Names of arrays: hashes of texts, and keys of band n with the prefix BAND.
HASHES = "hashes"
BAND = "band"
# Processor seconds for one document above which a warning names the rule and the document.
SLOW_SECONDS = 5.0


@dataclass(frozen=True)
class Comparison:
    """Comparison of all documents by one hash or key.

    Attributes:
        array: Array of FirstPass with the hashes or keys.
        rule: Rule comparing them.
    """

    array: str
    rule: str


def compares_units(drop_duplicates: bool, rules: Collection[str], num_units: int) -> bool:
    """Whether documents are compared with those of other units. Each unit then takes a first and a write pass.

    Args:
        drop_duplicates: Whether to drop exact duplicates.
        rules: Names of the other cleaning rules.
        num_units: Number of units.
    """
    return (drop_duplicates or NEAR_DUPLICATES in rules) and num_units > 1


@dataclass(frozen=True)
class Cleaning:
    """Cleaning rules of a source.

    Attributes:
        rules: Rules by name. Near duplicates are dropped last, wherever the rule stands.
        drop_duplicates: Whether to drop exact duplicates.
        slow_seconds: Processor seconds for one document above which a warning names the rule and the document.
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)
    drop_duplicates: bool = True
    slow_seconds: float = SLOW_SECONDS

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

    def compares_units(self, num_units: int) -> bool:
        """Whether documents are compared with those of other units. Each unit then takes a first and a write pass."""
        return compares_units(self.drop_duplicates, self.rules, num_units)

    @property
    def comparisons(self) -> list[Comparison]:
        """Comparisons of all documents, in order."""
        comparisons = []
        if self.near_duplicates is not None:
            num_bands = self.near_duplicates.banding.bands
            comparisons += [Comparison(f"{BAND}{number}", NEAR_DUPLICATES) for number in range(num_bands)]
        if self.drop_duplicates:
            comparisons.append(Comparison(HASHES, DUPLICATES))
        return comparisons

    @property
    def comparing_rules(self) -> list[str]:
        """Rules comparing documents. A document dropped by two rules counts for the last one."""
        return list(dict.fromkeys(comparison.rule for comparison in self.comparisons))

    def decide(self, document: Document) -> Decision:
        """Decide about a document by the rules about single documents."""
        edits: tuple[Edit, ...] = ()
        scores = dict(document.scores)
        for name, rule in self.rules.items():
            if not isinstance(rule, DocumentRule | ScoreRule):
                continue
            text = document.text
            try:
                with self.watch(name, document):
                    if isinstance(rule, ScoreRule):
                        scores[name] = rule.score(text)
                        if scores[name] < rule.minimum:
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
        return Decision(document.text, edits=edits, scores=scores, content=content, digest=document_hash(content))

    @contextmanager
    def watch(self, rule: str, document: Document) -> Iterator[None]:
        """Name the document for which a rule is slow or fails. Slow rules only cause a warning: no decision depends on time."""
        start = time.thread_time()
        try:
            yield
        except DocumentDropped:
            raise
        except Exception as error:
            error.add_note(f"rule {rule} was applied to {printable(document.place)}")
            raise
        finally:
            seconds = time.thread_time() - start
            if seconds > self.slow_seconds:
                place = printable(document.place)
                length = len(document.text)
                LOG.warning(f"rule {rule} took {seconds:.0f} s for {place}, a document of {length:,} characters")

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
