"""Near duplicates: documents that resemble an earlier one."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from megatape.data.cleaning.rule import Rule
from megatape.data.cleaning.word_runs import hash_runs
from megatape.errors import UserError

if TYPE_CHECKING:
    from datasketch import MinHash

# Minimum share of the texts at the threshold that are found.
RECALL = 0.8
# Seed of datasketch's permutations.
SEED = 1
# datasketch's permutations have 32 bits.
SHIFT = np.uint64(32)
# Number of shingles permuted at a time. Each takes a kilobyte.
SHINGLES_AT_ONCE = 2**14
# Maximum number of texts with equal keys that a later text is compared with, which makes the time linear.
MAX_BUCKET = 8
# Number and shingles of each text with the same key.
Bucket = list[tuple[int, np.ndarray]]


@dataclass(frozen=True)
class NearDuplicates(Rule):
    """Drops documents whose Jaccard similarity to an earlier kept one is `threshold` or more, by shingles of `words` words.

    Dropped documents do not count, so a chain of overlapping texts keeps the texts that differ.

    MinHash (Broder, 1997) with locality-sensitive hashing finds candidates. The signature of a text, `permutations` minima
    computed by datasketch, is divided into bands. Two texts of similarity s agree in one of b bands of r rows with probability
    1 - (1 - s^r)^b. Then their shingles decide.

    Attributes:
        threshold: Least similarity of near duplicates.
        permutations: Number of permutations.
        words: Number of words in a shingle.
        bands: Number of bands. None: all that the permutations suffice for.
        rows: Number of rows of a band, given together with `bands`. None: the largest number that finds RECALL of the texts at
            the threshold.
    """

    packages: ClassVar[tuple[str, ...]] = ("datasketch",)
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.8
    permutations: Annotated[int, Field(ge=16, le=1024)] = 128
    words: Annotated[int, Field(ge=1)] = 5
    bands: Annotated[int, Field(ge=1)] | None = None
    rows: Annotated[int, Field(ge=1)] | None = None

    def __post_init__(self) -> None:
        if (self.bands is None) != (self.rows is None):
            raise UserError("bands and rows belong together: give both, or a threshold")
        if (self.bands or 0) * (self.rows or 0) > self.permutations:
            raise UserError(f"{self.bands} bands of {self.rows} rows are more than {self.permutations} permutations: give more")

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        bands, rows = self.shape
        described["options"] |= {"bands": bands, "rows": rows}
        return described

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Number of bands, and of rows of each."""
        if self.bands and self.rows:
            return self.bands, self.rows
        for rows in range(self.permutations, 1, -1):
            bands = self.permutations // rows
            recall = 1 - (1 - self.threshold**rows) ** bands
            if recall >= RECALL:
                return bands, rows
        return self.permutations, 1

    @cached_property
    def _empty(self) -> "MinHash":
        from datasketch import MinHash

        return MinHash(self.permutations, seed=SEED, scheme="affine32", hashfunc=int)

    def signature(self, text: str, at_once: int = SHINGLES_AT_ONCE) -> tuple[np.ndarray, np.ndarray]:
        """Compute the MinHash signature of a text.

        Args:
            text: Text.
            at_once: Number of shingles permuted at a time.

        Returns:
            Keys, uint64 [bands]. Texts that agree in one key are candidates. Texts without words agree if they are equal.
            Shingles, uint32, sorted, each once. With 32 bits a similarity errs by less than 0.001 up to a million words.
        """
        from xxhash import xxh3_64_intdigest

        bands, rows = self.shape
        shingles = np.unique((hash_runs(text, self.words) >> SHIFT).astype(np.uint32))
        if not shingles.size:
            return np.full(bands, xxh3_64_intdigest(text.encode()), np.uint64), shingles
        signature = self._empty.copy()
        for begin in range(0, shingles.size, at_once):
            signature.update_batch(shingles[begin : begin + at_once].tolist())
        minima = signature.hashvalues[: bands * rows].reshape(bands, rows)
        keys = np.array([xxh3_64_intdigest(band.tobytes()) for band in minima], np.uint64)
        return keys, shingles

    def matches_bucket(self, number: int, shingles: np.ndarray, bucket: Bucket) -> list[int]:
        """Compare a text with earlier texts of the same key.

        Args:
            number: Number of the text, larger than the numbers of the earlier texts.
            shingles: Shingles of the text.
            bucket: Earlier texts. The text is added, unless the bucket is full or contains a text with the same shingles.

        Returns:
            Numbers of the similar earlier texts.
        """
        matches = []
        has_equal = False
        for earlier, earlier_shingles in bucket:
            similarity = self._similarity(shingles, earlier_shingles)
            if similarity >= self.threshold:
                matches.append(earlier)
            if similarity >= 1:
                has_equal = True
        if not has_equal and len(bucket) < MAX_BUCKET:
            bucket.append((number, shingles))
        return matches

    def _similarity(self, first: np.ndarray, second: np.ndarray) -> float:
        """Return the Jaccard similarity of two texts with equal keys, by their shingles."""
        num_common = np.intersect1d(first, second, assume_unique=True).size
        num_all = first.size + second.size - num_common
        if num_all == 0:
            # Texts without words have equal keys only if they are equal.
            return 1.0
        return num_common / num_all
