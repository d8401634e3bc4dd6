"""Near duplicates among planted ones, against the exact similarity of every pair: pytest -s prints recall and precision."""

import random
import re
import tracemalloc
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from scipy.sparse import csr_array

from megatape.data.cleaning.decisions import Cleaning, OnePass
from megatape.data.cleaning.near_duplicates import NearDuplicates
from megatape.data.cleaning.rule import parse_rules
from megatape.data.counts import CorpusCounts
from megatape.data.sources.document import Document
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source

PIECE_WORDS = 200
PIECES = 500
THRESHOLD = 0.8
EDGES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def planted(seed: int) -> list[str]:
    """Pieces of Python's library, then a copy of each, in which up to 6% of the words were replaced, added or left out."""
    draw = random.Random(seed)
    pieces: list[str] = []
    for document in read_documents(Source("python"), CorpusCounts()):
        words = document.text.split()
        pieces += [" ".join(words[first : first + PIECE_WORDS]) for first in range(0, len(words) - PIECE_WORDS, PIECE_WORDS)]
        if len(pieces) >= 8 * PIECES:
            break
    originals = draw.sample(pieces, PIECES)
    copies = [edited(text, draw.uniform(0, 0.06), draw) for text in originals]
    draw.shuffle(copies)
    return originals + copies


def edited(text: str, rate: float, draw: random.Random) -> str:
    words = text.split()
    for place in range(len(words)):
        if draw.random() < rate:
            words[place] = draw.choice(["", "another", f"{words[place]} more"])
    return " ".join(words)


def similarities(texts: list[str]) -> np.ndarray:
    """The largest Jaccard similarity of each text's runs of five words with those of an earlier text, float64 [texts]."""
    numbers: dict[tuple[str, ...], int] = defaultdict(lambda: len(numbers))
    runs = []
    for text in texts:
        words = re.findall(r"\w+", text.lower())
        runs.append(sorted({numbers[tuple(words[first : first + 5])] for first in range(len(words) - 4)}))
    ends = np.cumsum([0, *map(len, runs)])
    matrix = csr_array((np.ones(ends[-1]), np.concatenate(runs), ends), (len(texts), len(numbers)))
    common = (matrix @ matrix.T).toarray()
    sizes = np.diff(ends)
    return np.tril(common / (sizes[:, None] + sizes - common), -1).max(axis=1)


def test_recall_and_precision() -> None:
    """Found as often as the bands promise: 80% at the threshold, 90% at 0.9; and nothing below the threshold."""
    rule = f"near_duplicates:threshold={THRESHOLD}"
    cleaning = Cleaning(parse_rules([rule]), drop_duplicates=False)
    near = cleaning.near_duplicates
    assert isinstance(near, NearDuplicates)
    bands, rows = near.banding
    texts = planted(seed=0)
    similarity = similarities(texts)
    decider = OnePass(cleaning)
    dropped = np.array([decider.decide(Document(text, "")).text is None for text in texts])
    promised = (1 - (1 - similarity**rows) ** bands) * (similarity >= THRESHOLD)
    print(f"\n{rule}, {len(texts):,} documents: {bands} bands of {rows} rows")
    for low, high in pairwise(EDGES):
        chosen = (similarity >= low) & ((similarity < high) | (high == 1))
        share = dropped[chosen].mean()
        wanted = promised[chosen].mean()
        print(f"similarity {low} to {high}: {chosen.sum():4} documents, {share:6.1%} left out, {wanted:6.1%} by the formula")
        deviation = np.sqrt((promised * (1 - promised))[chosen].sum()) / chosen.sum()
        assert abs(share - wanted) <= 4 * deviation + 0.01  # which a text gains that resembles several
    at_threshold = (similarity >= THRESHOLD) & (similarity <= THRESHOLD + 0.05)
    assert promised[at_threshold].mean() > 0.8 and dropped[at_threshold].mean() > 0.75  # of some 60 documents
    assert dropped[similarity >= 0.9].mean() > 0.99 and not dropped[similarity < THRESHOLD].any()
    print(f"recall of those of {THRESHOLD} and more: {dropped[similarity >= THRESHOLD].mean():.1%}")


def test_a_chain_of_overlapping_texts_keeps_those_that_differ() -> None:
    """Windows of one stream only resemble their neighbors. Earlier versions dropped all but the first."""
    words = [f"word{number}" for number in range(2000)]
    windows = [" ".join(words[first : first + 200]) for first in range(0, 800, 20)]
    decider = OnePass(Cleaning(parse_rules(["near_duplicates:bands=42,rows=3"])))
    kept = [number for number, text in enumerate(windows) if decider.decide(Document(text, "")).text is not None]
    assert kept == list(range(0, 40, 2))


@pytest.mark.parametrize(
    ("first", "second"), [("!?", "!?"), ("one word", "One, WORD!"), (" ".join("abcdefgh"), "A b c d e f g h.")]
)
def test_what_has_the_same_words_is_the_same(first: str, second: str) -> None:
    near = NearDuplicates()
    assert (near.signature(first)[0] == near.signature(second)[0]).all()


def test_a_long_document_takes_little_memory() -> None:
    """All permutations of all runs at the same time would take 100 MB. The parts do not show in the keys."""
    text = " ".join(map(str, range(100_000)))
    near = NearDuplicates()
    near.signature("the packages are loaded")
    tracemalloc.start()
    keys = near.signature(text)[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6, f"{peak:,} bytes at the same time"
    assert (near.signature(text, at_once=70_000)[0] == keys).all()


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("permutations", [64, 128, 256])
def test_bands_find_texts_at_the_threshold(threshold: float, permutations: int) -> None:
    """Of as many rows as that allows: one more would find fewer than four of five."""
    bands, rows = NearDuplicates(threshold, permutations).banding
    assert bands * rows <= permutations and 1 - (1 - threshold**rows) ** bands >= 0.8
    assert all(1 - (1 - threshold**more) ** (permutations // more) < 0.8 for more in range(rows + 1, permutations + 1))
    assert NearDuplicates(threshold, permutations, bands=2, rows=3).banding == (2, 3)


def test_texts_with_few_or_no_words_are_not_all_alike() -> None:
    texts = ["!?", "?!", "one", "two", "one two", "two one"]
    keys = [tuple(NearDuplicates().signature(text)[0]) for text in texts]
    assert all(not set(first) & set(second) for number, first in enumerate(keys) for second in keys[:number])
