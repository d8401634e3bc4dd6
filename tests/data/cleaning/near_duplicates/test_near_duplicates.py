"""Finding planted near duplicates, checked by every pair's exact similarity: pytest -s prints recall and precision."""

import random
import re
import tracemalloc
from collections import defaultdict
from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.sparse import csr_array

from megatape.data.cleaning.decisions import Cleaning, OnePass
from megatape.data.cleaning.near_duplicates.near_duplicates import Banding, NearDuplicates
from megatape.data.cleaning.rule import parse_rules
from megatape.data.counts import CorpusCounts
from megatape.data.sources.document import Document
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source

PIECE_WORDS = 200
NUM_PIECES = 500
SHINGLE_WORDS = 5
THRESHOLD = 0.8
BIN_EDGES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def planted_near_duplicates(seed: int) -> list[str]:
    """Return pieces of Python's library, followed by an edited copy of each, changing up to 6% of the words."""
    draw = random.Random(seed)
    originals = draw.sample(library_pieces(8 * NUM_PIECES), NUM_PIECES)
    copies = [edited(text, draw.uniform(0, 0.06), draw) for text in originals]
    draw.shuffle(copies)
    return originals + copies


def library_pieces(minimum: int) -> list[str]:
    """Cut documents from Python's library into pieces with equally many words, until there are enough."""
    pieces: list[str] = []
    for document in read_documents(Source("python"), CorpusCounts()):
        words = document.text.split()
        for first in range(0, len(words) - PIECE_WORDS, PIECE_WORDS):
            pieces.append(" ".join(words[first : first + PIECE_WORDS]))
        if len(pieces) >= minimum:
            break
    return pieces


def edited(text: str, rate: float, draw: random.Random) -> str:
    """Remove or replace words, or add words, at this rate."""
    words = text.split()
    for index in range(len(words)):
        if draw.random() < rate:
            words[index] = draw.choice(["", "another", f"{words[index]} more"])
    return " ".join(words)


def max_similarities(texts: list[str]) -> np.ndarray:
    """Return each text's largest Jaccard similarity with an earlier text, by shingles of five words, float64 [texts]."""
    numbers: dict[tuple[str, ...], int] = defaultdict(lambda: len(numbers))
    shingles = []
    for text in texts:
        words = re.findall(r"\w+", text.lower())
        starts = range(len(words) - SHINGLE_WORDS + 1)
        shingles.append(sorted({numbers[tuple(words[first : first + SHINGLE_WORDS])] for first in starts}))
    ends = np.cumsum([0, *map(len, shingles)])
    matrix = csr_array((np.ones(ends[-1]), np.concatenate(shingles), ends), (len(texts), len(numbers)))
    intersections = (matrix @ matrix.T).toarray()
    sizes = np.diff(ends)
    unions = sizes[:, None] + sizes - intersections
    earlier_only = np.tril(intersections / unions, -1)
    return earlier_only.max(axis=1)


def chance_of_a_common_key(similarity: np.ndarray | float, banding: Banding) -> np.ndarray | float:
    """Return how likely two texts with this similarity agree in a band."""
    return 1 - (1 - similarity**banding.rows) ** banding.bands


def test_recall_and_precision() -> None:
    """Near duplicates are found as often as the bands promise: 80% at the threshold, 90% at 0.9. Nothing below is dropped."""
    rule = f"near_duplicates:threshold={THRESHOLD}"
    cleaning = Cleaning(parse_rules([rule]), drop_duplicates=False)
    near = cleaning.near_duplicates
    assert isinstance(near, NearDuplicates)
    texts = planted_near_duplicates(seed=0)
    similarity = max_similarities(texts)
    promised = chance_of_a_common_key(similarity, near.banding) * (similarity >= THRESHOLD)

    decider = OnePass(cleaning)
    dropped = np.array([decider.decide(Document(text, "")).text is None for text in texts])

    print(f"\n{rule}, {len(texts):,} documents: {near.banding.bands} bands of {near.banding.rows} rows")
    for low, high in pairwise(BIN_EDGES):
        in_bin = (similarity >= low) & ((similarity < high) | (high == 1))
        num_texts = in_bin.sum()
        share = dropped[in_bin].mean()
        expected = promised[in_bin].mean()
        print(f"similarity {low} to {high}: {num_texts:4} documents, {share:6.1%} dropped, {expected:6.1%} by the formula")
        deviation = np.sqrt((promised * (1 - promised))[in_bin].sum()) / num_texts
        # One percent is for texts resembling several earlier ones, which are found more often.
        assert abs(share - expected) <= 4 * deviation + 0.01
    print(f"recall at {THRESHOLD} and above: {dropped[similarity >= THRESHOLD].mean():.1%}")

    near_threshold = (similarity >= THRESHOLD) & (similarity <= THRESHOLD + 0.05)  # about 60 documents
    assert promised[near_threshold].mean() > 0.8
    assert dropped[near_threshold].mean() > 0.75
    assert dropped[similarity >= 0.9].mean() > 0.99
    assert not dropped[similarity < THRESHOLD].any()


def test_a_chain_of_overlapping_texts_keeps_those_that_differ() -> None:
    """Windows over one stream only resemble their neighbors. Earlier versions dropped all but the first."""
    words = [f"word{number}" for number in range(2000)]
    windows = [" ".join(words[first : first + 200]) for first in range(0, 800, 20)]
    decider = OnePass(Cleaning(parse_rules(["near_duplicates:bands=42,rows=3"])))

    decisions = [decider.decide(Document(text, "")) for text in windows]

    kept = [number for number, decision in enumerate(decisions) if decision.text is not None]
    assert kept == list(range(0, 40, 2))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("!?", "!?"),
        ("one word", "One, WORD!"),
        (" ".join("abcdefgh"), "A b c d e f g h."),
    ],
)
def test_texts_with_the_same_words_have_the_same_keys(first: str, second: str) -> None:
    near = NearDuplicates()

    assert near.signature(first).keys.tolist() == near.signature(second).keys.tolist()


def test_a_long_document_takes_little_memory() -> None:
    """Permuting all shingles at the same time would take 100 MB. Computing in parts does not change the keys."""
    text = " ".join(map(str, range(100_000)))
    near = NearDuplicates()
    near.signature("Import the packages.")

    tracemalloc.start()
    keys = near.signature(text).keys
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 50e6, f"{peak:,} bytes at the same time"
    assert keys.tolist() == near.signature(text, at_once=70_000).keys.tolist()


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("permutations", [64, 128, 256])
def test_bands_find_four_of_five_texts_at_the_threshold(threshold: float, permutations: int) -> None:
    """Bands have as many rows as possible: with more rows, fewer than four of five would be found."""
    banding = NearDuplicates(threshold, permutations).banding

    assert banding.bands * banding.rows <= permutations
    assert chance_of_a_common_key(threshold, banding) >= 0.8
    for rows in range(banding.rows + 1, permutations + 1):
        assert chance_of_a_common_key(threshold, Banding(permutations // rows, rows)) < 0.8


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("permutations", [64, 128, 256])
def test_bands_and_rows_may_be_chosen(threshold: float, permutations: int) -> None:
    assert NearDuplicates(threshold, permutations, bands=2, rows=3).banding == (2, 3)


def test_texts_with_few_or_no_words_are_not_all_alike() -> None:
    texts = ["!?", "?!", "one", "two", "one two", "two one"]
    keys = [set(NearDuplicates().signature(text).keys.tolist()) for text in texts]

    for first, second in combinations(keys, 2):
        assert first & second == set()
