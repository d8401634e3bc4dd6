"""Names of sets, SCROLLS' or a user's own, and their metrics."""

import re
from typing import NamedTuple

from megatape.errors import UserError
from megatape.errors.suggestions import choose_one
from megatape.lab.tasks.scores import METRICS, Metric

# SCROLLS set -> metric.
SETS: dict[str, Metric] = {
    "qasper": "f1",
    "contract_nli": "exact_match",
    "narrative_qa": "f1",
    "quality": "exact_match",
    "qmsum": "rouge",
    "summ_screen_fd": "rouge",
    "gov_report": "rouge",
}


class TextSet(NamedTuple):
    """A set and its answers' metric.

    Attributes:
        name: Set name.
        metric: `rouge` for summaries, otherwise a metric for answers to questions.
    """

    name: str
    metric: Metric

    @property
    def label(self) -> str:
        """Set name and metric, for tables."""
        return f"{self.name} {METRICS[self.metric]}"


def parse_set(text: str) -> TextSet:
    """Parse the name of a SCROLLS set, or NAME=METRIC for another set.

    Raises:
        UserError: The text is neither.
    """
    name, _, metric = text.partition("=")
    if text in SETS:
        return TextSet(text, SETS[text])
    is_new_name = name not in SETS and re.fullmatch(r"\w[\w.-]*", name)
    if metric in METRICS and is_new_name:
        return TextSet(name, metric)
    raise UserError(
        f"{text!r} is not a set: {choose_one(text, SETS)}, or give a set of your own with its metric, such as "
        f"my_set=exact_match (of {', '.join(METRICS)})"
    )
