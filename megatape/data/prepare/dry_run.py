"""What cleaning would do to the first documents of a source."""

import os
from dataclasses import dataclass, field, replace

from megatape.data.cleaning.cleaning import Cleaning
from megatape.data.cleaning.decisions import DUPLICATES, judge_at_once
from megatape.data.cleaning.near_duplicates import NearDuplicates
from megatape.data.cleaning.rule import Dropped
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import CorpusCounts, Source
from megatape.errors import path_errors

NUM_EXAMPLES = 20  # of each rule
BEFORE, SHOWN = 20, 80  # characters of a text that are shown, before the first change and in all


@dataclass
class Effect:
    """What a rule would do.

    Attributes:
        dropped: how many documents would go.
        changed: how many documents would change.
        examples: of the first of them, the place, what would become of it, and some of its text.
    """

    dropped: int = 0
    changed: int = 0
    examples: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, place: str, outcome: str, text: str) -> None:
        if len(self.examples) < NUM_EXAMPLES:
            self.examples.append((place, outcome, " ".join(text[:SHOWN].split())))


@path_errors()
def dry_run(source: Source, cleaning: Cleaning, drop_duplicates: bool, num_documents: int) -> tuple[dict[str, Effect], int]:
    """The effects of all rules on the first `num_documents` documents, and how many were read. Raises what reading raises."""
    effects = {name: Effect() for name in [*cleaning.rules, *([DUPLICATES] if drop_duplicates else [])]}
    others = {name: rule for name, rule in cleaning.rules.items() if isinstance(rule, NearDuplicates)}
    compare, counts = judge_at_once(Cleaning(others), drop_duplicates), CorpusCounts()
    for document in read_documents(replace(source, max_documents=num_documents, validation=()), counts):
        text = document.text
        try:
            for name, left in cleaning.steps(text):
                if left != text:
                    effects[name].changed += 1
                    same = len(os.path.commonprefix([text, left]))
                    effects[name].add(document.place, "changed", text[max(0, same - BEFORE) :])
                text = left
            compare(text)
        except Dropped as dropped:
            name, _, reason = str(dropped).partition(": ")
            effects[name].dropped += 1
            effects[name].add(document.place, reason or name, text)
    return effects, counts.documents
