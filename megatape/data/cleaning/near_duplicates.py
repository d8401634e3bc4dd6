"""Documents that resemble an earlier one."""

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

RECALL = 0.8  # share of the texts at the threshold that are found, at least
SEED = 1  # of datasketch's permutations
SHIFT = np.uint64(32)  # datasketch's permutations are of 32 bits
AT_ONCE = 2**14  # runs that are permuted at a time, which takes a kilobyte for each
MAX_BUCKET = 8  # texts with equal keys that a later one is compared with, so that the time is linear
Bucket = list[tuple[int, np.ndarray]]  # Number and runs of each text with the same key.


@dataclass(frozen=True)
class NearDuplicates(Rule):
    """Drops documents whose Jaccard similarity to an earlier kept one is `threshold` or more, by runs of `words` words.

    Dropped documents do not count, so a chain of overlapping texts keeps the texts that differ.

    MinHash (Broder, 1997) with locality-sensitive hashing finds candidates. The signature of a text, `permutations` minima by
    datasketch, is divided into bands. Two texts of similarity s agree in one of b bands of r rows with probability
    1 - (1 - s^r)^b. Then their runs decide.

    bands, rows: both, or by default as many rows as find RECALL of the texts at the threshold, and all bands that there are.
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
        described["options"] |= dict(zip(("bands", "rows"), self.shape, strict=True))
        return described

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Bands, and rows of each."""
        if self.bands and self.rows:
            return self.bands, self.rows
        all_rows = range(self.permutations, 1, -1)
        found = (rows for rows in all_rows if 1 - (1 - self.threshold**rows) ** (self.permutations // rows) >= RECALL)
        rows = next(found, 1)
        return self.permutations // rows, rows

    @cached_property
    def _empty(self) -> "MinHash":
        from datasketch import MinHash

        return MinHash(self.permutations, seed=SEED, scheme="affine32", hashfunc=int)

    def signature(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """What a text is compared by.

        Returns:
            Its keys, uint64 [bands]: texts that agree in one are candidates; those without words agree if they are equal.
            Its runs, uint32, sorted, each once: by 32 bits a similarity errs by less than 0.001 up to a million words.
        """
        from xxhash import xxh3_64_intdigest

        bands, rows = self.shape
        runs = np.unique((hash_runs(text, self.words) >> SHIFT).astype(np.uint32))
        if not runs.size:
            return np.full(bands, xxh3_64_intdigest(text.encode()), np.uint64), runs
        signature = self._empty.copy()
        for begin in range(0, runs.size, AT_ONCE):
            signature.update_batch(runs[begin : begin + AT_ONCE].tolist())
        minima = signature.hashvalues[: bands * rows].reshape(bands, rows)
        return np.array([xxh3_64_intdigest(band.tobytes()) for band in minima], np.uint64), runs

    def find(self, number: int, runs: np.ndarray, bucket: Bucket) -> list[int]:
        """Compare a text with earlier texts of the same key.

        Args:
            number: Number of the text, larger than the numbers of the earlier texts.
            runs: Runs of the text.
            bucket: Earlier texts. The text is added, unless the bucket is full or contains a text with the same runs.

        Returns:
            Numbers of the similar earlier texts.
        """
        similarities = [self._similarity(runs, earlier) for _, earlier in bucket]
        found = [earlier for (earlier, _), value in zip(bucket, similarities, strict=True) if value >= self.threshold]
        if max(similarities, default=0.0) < 1 and len(bucket) < MAX_BUCKET:
            bucket.append((number, runs))
        return found

    def _similarity(self, first: np.ndarray, second: np.ndarray) -> float:
        """Jaccard similarity of two texts by their runs; those without words have equal keys only if they are equal."""
        common = np.intersect1d(first, second, assume_unique=True).size
        union = first.size + second.size - common
        return common / union if union else 1.0
