"""The records of a suite as it would write them, drawn from a seed, with effects that are known."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from megatape.lab.study.suite.plan import Plan
from megatape.lab.study.suite.scores.record import Record
from megatape.lab.study.suite.tables.suite_results import SuiteResults

ASKED = 1000
KEYS = (4, 8, 16, 32)
SPLITS = ("test", "long", "sparse")
# Mean of a split's score. Encodings without an entry are like rope.
LEVELS = {"test": 0.97, "long": 0.6, "sparse": 0.75}
EFFECTS = {("tape", "long"): 0.3, ("nope", "test"): -0.6, ("nope", "long"): -0.4, ("nope", "sparse"): -0.5}
ENCODINGS = ("alibi", "fire", "nope", "rope", "tape")


SECONDS: dict[str, list[float]] = defaultdict(lambda: [60.0])  # of the runs of each row


def make_suite(
    records: list[Record],
    plan: Plan,
    seconds: dict[str, list[float]] = SECONDS,
    not_run: Sequence[str] = (),
    command: str = "typed",
) -> SuiteResults:
    """Results of a suite with these records."""
    return SuiteResults(plan, command, records, seconds, list(not_run), controls=[])


def make_records(
    tasks: Sequence[str],
    encodings: Sequence[str] = ENCODINGS,
    seeds: int = 5,
    effects: Mapping[tuple[str, str], float] = EFFECTS,
    spread: float = 0.03,
    limited: Sequence[str] = ("xpos",),
) -> list[Record]:
    """Scores around LEVELS and effects, with a part that the encodings of a seed share, and answers that are drawn from them.

    effects: of (encoding, split). spread: over seeds. limited: encodings that cannot do `long`. Baselines: an oracle and a
    majority guess."""
    generator = np.random.default_rng(0)
    records = []
    for task in tasks:
        for split in SPLITS:
            common = generator.normal(0, spread, seeds)
            for row in (*encodings, *limited):
                for seed in range(seeds):
                    if row in limited and split == "long":
                        reason = "not applicable because 64 positions are more than 32"
                        records.append(_record(task, split, row, seed, None, reason=reason))
                        continue
                    share = LEVELS[split] + effects.get((row, split), 0) + common[seed] + generator.normal(0, spread)
                    # Longer distances are harder.
                    right = generator.binomial(ASKED // len(KEYS), np.clip(share + 0.05 - 0.1 * np.arange(4) / 3, 0, 1))
                    records.append(_record(task, split, row, seed, right))
            for row, share in {"majority": 0.5, "oracle": 1.0}.items():
                right = np.full(len(KEYS), int(share * ASKED / len(KEYS)))
                records.append(_record(task, split, row, None, right))
    return records


def _record(task: str, split: str, row: str, seed: int | None, right: np.ndarray | None, reason: str | None = None) -> Record:
    curve = (
        () if right is None else tuple((key, int(count), ASKED // len(KEYS)) for key, count in zip(KEYS, right, strict=True))
    )
    return Record(
        task=task,
        split=split,
        row=row,
        kind="baseline" if seed is None else "encoding",
        seed=seed,
        learning_rate=None if seed is None else 1e-3,
        score=None if right is None else float(right.sum()) / ASKED,
        reason=reason,
        asked=0 if right is None else ASKED,
        curve=curve,
    )
