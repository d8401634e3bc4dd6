"""Records as a suite would write them, drawn from a seed, with known effects."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from megatape.lab.study.suite.plan import Plan
from megatape.lab.study.suite.scores.record import Record
from megatape.lab.study.suite.tables.suite_results import SuiteResults

# Number of answers behind each score
ASKED = 1000
KEYS = (4, 8, 16, 32)
ASKED_OF_KEY = ASKED // len(KEYS)
SPLITS = ("test", "long", "sparse")
# Mean score on each split, for encodings without an effect.
LEVELS = {"test": 0.97, "long": 0.6, "sparse": 0.75}
# Effects by encoding and split. Encodings without an entry are like rope.
EFFECTS = {("tape", "long"): 0.3, ("nope", "test"): -0.6, ("nope", "long"): -0.4, ("nope", "sparse"): -0.5}
ENCODINGS = ("alibi", "fire", "nope", "rope", "tape")
# Baseline scores: the share of right answers for every key
BASELINE_SHARES = {"majority": 0.5, "oracle": 1.0}
# Seconds that the runs in each row took
SECONDS: dict[str, list[float]] = defaultdict(lambda: [60.0])


def make_suite(
    records: list[Record],
    plan: Plan,
    seconds: dict[str, list[float]] = SECONDS,
    not_run: Sequence[str] = (),
    command: str = "typed",
) -> SuiteResults:
    """Return suite results with these records."""
    return SuiteResults(plan, command, records, seconds, list(not_run), controls=[])


def make_records(
    tasks: Sequence[str],
    encodings: Sequence[str] = ENCODINGS,
    seeds: int = 5,
    effects: Mapping[tuple[str, str], float] = EFFECTS,
    spread: float = 0.03,
    limited: Sequence[str] = ("xpos",),
) -> list[Record]:
    """Draw scores around LEVELS plus effects, with a part that the encodings of a seed share, and answers with those scores.

    There are records of two baselines, too: an oracle and a majority guess.

    Args:
        tasks: Task names.
        encodings: Encodings that can do every split.
        seeds: Number of seeds.
        effects: Difference from LEVELS by encoding and split.
        spread: Standard deviation over seeds.
        limited: Encodings that cannot do `long`.
    """
    generator = np.random.default_rng(0)
    records = []
    for task in tasks:
        for split in SPLITS:
            common = generator.normal(0, spread, seeds)
            for row in (*encodings, *limited):
                for seed in range(seeds):
                    if row in limited and split == "long":
                        records.append(_not_applicable(task, split, row, seed))
                        continue
                    share = LEVELS[split] + effects.get((row, split), 0) + common[seed] + generator.normal(0, spread)
                    # Longer distances are harder.
                    shares = np.clip(share + 0.05 - 0.1 * np.arange(4) / 3, 0, 1)
                    records.append(_encoding(task, split, row, seed, generator.binomial(ASKED_OF_KEY, shares)))
            for row, share in BASELINE_SHARES.items():
                records.append(_baseline(task, split, row, int(share * ASKED_OF_KEY)))
    return records


def _encoding(task: str, split: str, row: str, seed: int, right: np.ndarray) -> Record:
    """Return the record of a model with these numbers of right answers by key."""
    return Record(
        task=task,
        split=split,
        contender=row,
        kind="encoding",
        seed=seed,
        learning_rate=1e-3,
        score=float(right.sum()) / ASKED,
        reason=None,
        asked=ASKED,
        curve=tuple((key, int(count), ASKED_OF_KEY) for key, count in zip(KEYS, right, strict=True)),
    )


def _not_applicable(task: str, split: str, row: str, seed: int) -> Record:
    return Record(
        task=task,
        split=split,
        contender=row,
        kind="encoding",
        seed=seed,
        learning_rate=1e-3,
        score=None,
        reason="not applicable because 64 positions are more than 32",
        asked=0,
        curve=(),
    )


def _baseline(task: str, split: str, row: str, right_of_key: int) -> Record:
    return Record(
        task=task,
        split=split,
        contender=row,
        kind="baseline",
        seed=None,
        learning_rate=None,
        score=right_of_key * len(KEYS) / ASKED,
        reason=None,
        asked=ASKED,
        curve=tuple((key, right_of_key, ASKED_OF_KEY) for key in KEYS),
    )
