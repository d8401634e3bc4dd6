"""The effect of cleaning on the first documents of a source, without writing anything."""

import os
from collections import Counter
from dataclasses import replace

from megatape.data.cleaning.decisions import DUPLICATES, Cleaning, OnePass
from megatape.data.counts import CorpusCounts
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.errors import path_errors

NUM_EXAMPLES = 20  # of each rule
# characters of a text that are shown, before the first change and in all
BEFORE = 20
SHOWN = 80


@path_errors()
def dry_run(source: Source, cleaning: Cleaning, num_documents: int) -> list[str]:
    """The effects of all rules on the first `num_documents` documents, as lines. Raises the errors of reading."""
    examples = {name: list[str]() for name in [*cleaning.rules, *([DUPLICATES] if cleaning.drop_duplicates else [])]}
    dropped = Counter[str]()
    changed = Counter[str]()
    decider = OnePass(cleaning)
    counts = CorpusCounts()
    for document in read_documents(replace(source, max_documents=num_documents, validation=()), counts):
        text = document.text
        decision = decider.decide(document)
        for name, left in decision.edits:
            changed[name] += 1
            same = len(os.path.commonprefix([text, left]))
            examples[name].append(f"  {document.place}: changed: {' '.join(text[max(0, same - BEFORE) :][:SHOWN].split())}")
            text = left
        if decision.text is None:
            dropped[decision.rule] += 1
            score = f" ({decision.scores[decision.rule]:.3g})" if decision.rule in decision.scores else ""
            reason = (decision.reason or decision.rule) + score
            examples[decision.rule].append(f"  {document.place}: {reason}: {' '.join(text[:SHOWN].split())}")
    report = [f"of the first {counts.total.kept:,} documents {counts.total.kept - dropped.total():,} stay"]
    for name, shown in examples.items():
        report += [f"{name}: {dropped[name]:,} left out, {changed[name]:,} changed", *shown[:NUM_EXAMPLES]]
    return report
