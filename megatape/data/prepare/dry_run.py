"""Shows the effects of cleaning on the first documents of a source, without writing anything."""

import os
from collections import Counter
from dataclasses import replace

from megatape.data.cleaning.decisions import DUPLICATES, Cleaning, OnePass
from megatape.data.counts import CorpusCounts
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.errors import path_errors

# Maximum number of examples of each rule.
NUM_EXAMPLES = 20
# Characters to show of a text: before its first change, and in all.
NUM_BEFORE = 20
NUM_SHOWN = 80


@path_errors()
def dry_run(source: Source, cleaning: Cleaning, num_documents: int) -> list[str]:
    """Return the effects of all rules on the first documents, as lines. Raises the errors of reading.

    Args:
        source: Source of the documents.
        cleaning: Rules to apply.
        num_documents: Number of documents to read.
    """
    examples: dict[str, list[str]] = {name: [] for name in cleaning.rules}
    if cleaning.drop_duplicates:
        examples[DUPLICATES] = []
    dropped = Counter[str]()
    changed = Counter[str]()
    decider = OnePass(cleaning)
    counts = CorpusCounts()
    for document in read_documents(replace(source, max_documents=num_documents, validation=()), counts):
        text = document.text
        decision = decider.decide(document)
        for edit in decision.edits:
            changed[edit.rule] += 1
            num_same = len(os.path.commonprefix([text, edit.text]))
            excerpt = _shortened(text[max(0, num_same - NUM_BEFORE) :])
            examples[edit.rule].append(f"  {document.place}: changed: {excerpt}")
            text = edit.text
        if decision.text is None:
            dropped[decision.rule] += 1
            reason = decision.reason or decision.rule
            if decision.rule in decision.scores:
                reason += f" ({decision.scores[decision.rule]:.3g})"
            examples[decision.rule].append(f"  {document.place}: {reason}: {_shortened(text)}")
    num_read = counts.total.num_kept
    report = [f"of the first {num_read:,} documents {num_read - dropped.total():,} stay"]
    for name, lines in examples.items():
        report.append(f"{name}: {dropped[name]:,} left out, {changed[name]:,} changed")
        report += lines[:NUM_EXAMPLES]
    return report


def _shortened(text: str) -> str:
    """Return the start of a text on one line."""
    return " ".join(text[:NUM_SHOWN].split())
