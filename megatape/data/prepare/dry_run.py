"""Shows the effects of cleaning on the first documents of a source, without writing anything."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from megatape.data.cleaning.decisions import DUPLICATES, NEAR_DUPLICATES, Cleaning, OnePass
from megatape.data.counts import CorpusCounts
from megatape.data.prepare.rule_costs import Projection, RuleCosts
from megatape.data.sources.document import Decision, Document
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.errors import path_errors

# Maximum number of examples of each rule.
NUM_EXAMPLES = 20
# Characters to show of a text: before its first change, and in all.
NUM_BEFORE = 20
NUM_SHOWN = 80


@dataclass
class RuleEffects:
    """Effects of one rule.

    Attributes:
        num_dropped: Documents dropped.
        num_changed: Documents changed.
        examples: Lines about the first of these documents.
    """

    num_dropped: int = 0
    num_changed: int = 0
    examples: list[str] = field(default_factory=list)

    def add_change(self, document: Document, before: str, after: str) -> None:
        self.num_changed += 1
        num_same = len(os.path.commonprefix([before, after]))
        excerpt = _shortened(before[max(0, num_same - NUM_BEFORE) :])
        self._add_example(f"  {document.location}: changed: {excerpt}")

    def add_drop(self, document: Document, text: str, decision: Decision) -> None:
        self.num_dropped += 1
        reason = decision.reason or decision.rule
        score = decision.scores.get(decision.rule)
        if score is not None:
            reason += f" ({score:.3g})"
        self._add_example(f"  {document.location}: {reason}: {_shortened(text)}")

    def _add_example(self, line: str) -> None:
        if len(self.examples) < NUM_EXAMPLES:
            self.examples.append(line)


@path_errors()
def dry_run(source: Source, cleaning: Cleaning, num_documents: int, price: float | None = None) -> list[str]:
    """Return lines about the effects of each rule on the first documents, and about its cost. Raises errors of reading.

    Args:
        source: Document source.
        cleaning: Rules to apply.
        num_documents: Documents to read.
        price: Price of a core hour. None: print no cost.
    """
    effects = {name: RuleEffects() for name in cleaning.rules}
    if cleaning.drop_duplicates:
        effects[DUPLICATES] = RuleEffects()
    source = replace(source, max_documents=num_documents, validation=())
    units = source.units()
    costs = RuleCosts()
    decider = OnePass(replace(cleaning, on_seconds=costs.add))
    counts = CorpusCounts()
    for document in read_documents(source, counts, units):
        text = document.text
        decision = decider.decide(document)
        for edit in decision.edits:
            effects[edit.rule].add_change(document, text, edit.text)
            text = edit.text
        if decision.text is None:
            effects[decision.rule].add_drop(document, text, decision)
    num_read = counts.total.num_kept
    total_bytes = sum(unit.num_bytes for unit in units)
    cost_lines = list(costs.report(Projection(num_read, counts.read_bytes, total_bytes, price)))
    lines = list(_report(effects, num_read))
    near = cleaning.near_duplicates
    if near is not None and near.folders:
        lines.append(f"{NEAR_DUPLICATES}: documents of folders are not read in a dry run, so more may be left out")
    return lines + cost_lines


def _report(effects: dict[str, RuleEffects], num_read: int) -> Iterator[str]:
    num_dropped = sum(effect.num_dropped for effect in effects.values())
    yield f"of the first {num_read:,} documents {num_read - num_dropped:,} stay"
    for name, effect in effects.items():
        yield f"{name}: {effect.num_dropped:,} left out, {effect.num_changed:,} changed"
        yield from effect.examples


def _shortened(text: str) -> str:
    """Return the start of a text on one line."""
    return " ".join(text[:NUM_SHOWN].split())
