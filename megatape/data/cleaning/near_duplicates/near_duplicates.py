"""Finds near duplicates, documents resembling an earlier one, by MinHash."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from megatape.data.cleaning.rule import Rule
from megatape.data.cleaning.word_runs import hash_runs
from megatape.data.io.records import LARGEST_RECORD_BYTES
from megatape.data.shards.hashes import content_hash
from megatape.data.sources.kept_documents import kept_documents
from megatape.data.sources.source import Source
from megatape.errors import UserError, flag

if TYPE_CHECKING:
    from datasketch import MinHash

# Minimum share of near duplicates, with a similarity at the threshold, that must be found.
RECALL = 0.8
# Seed of datasketch's permutations.
SEED = 1
# datasketch's permutations have 32 bits.
SHIFT = np.uint64(32)
# Shingles permuted at a time. Each takes a kilobyte.
SHINGLES_AT_ONCE = 2**14
# Maximum number of texts in a bucket, to which a later text with the same key is compared. It makes the time linear.
MAX_BUCKET = 8


class Banding(NamedTuple):
    """Number of bands of a signature, and rows per band."""

    bands: int
    rows: int


class Signature(NamedTuple):
    """MinHash signature of a text.

    Attributes:
        keys: uint64 [bands]. Texts that agree in one key are candidates. Texts without words agree if they are equal.
        shingles: Distinct shingles, uint32, sorted. With 32 bits, a similarity errs by less than 0.001 up to a million words.
    """

    keys: np.ndarray
    shingles: np.ndarray


class BucketText(NamedTuple):
    """A text in a bucket, with its number."""

    number: int
    shingles: np.ndarray


# Texts with the same key.
Bucket = list[BucketText]


@dataclass(frozen=True)
class NearDuplicates(Rule):
    """Drops documents whose Jaccard similarity to an earlier kept one is `threshold` or more, by shingles of `words` words.

    Dropped documents do not count, so a chain of overlapping texts keeps those that differ.

    MinHash (Broder, 1997) with locality-sensitive hashing finds candidates. The signature of a text, `permutations` minima
    computed by datasketch, is divided into bands. With b bands of r rows, two texts of similarity s agree in some band with
    probability 1 - (1 - s^r)^b. Their shingles then decide.

    Attributes:
        threshold: Minimum similarity of near duplicates.
        permutations: Number of permutations.
        words: Words in a shingle.
        bands: Number of bands. None: as many as the permutations allow.
        rows: Rows of a band, given together with `bands`. None: the largest number that finds RECALL of the texts at the
            threshold.
        folders: Data directories written with --keep-documents. Documents similar to one of theirs are dropped as well.
    """

    packages: ClassVar[tuple[str, ...]] = ("datasketch",)
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.8
    permutations: Annotated[int, Field(ge=16, le=1024)] = 128
    words: Annotated[int, Field(ge=1)] = 5
    bands: Annotated[int, Field(ge=1)] | None = None
    rows: Annotated[int, Field(ge=1)] | None = None
    folders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.bands is None) != (self.rows is None):
            raise UserError("bands and rows belong together: give both, or a threshold")
        if (self.bands or 0) * (self.rows or 0) > self.permutations:
            raise UserError(f"{self.bands} bands of {self.rows} rows are more than {self.permutations} permutations: give more")

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        described["options"] |= {"bands": self.banding.bands, "rows": self.banding.rows}
        if self.folders:
            described["sha256"] = {folder: content_hash(kept_documents(folder).document_files) for folder in self.folders}
        else:
            # Earlier versions, whose preparations can be resumed, do not have this option.
            del described["options"]["folders"]
        return described

    def check(self) -> None:
        for folder in self.folders:
            if not kept_documents(folder).document_files:
                raise UserError(
                    f"{folder} has no kept documents: prepare it with {flag('keep_documents')}, or drop equal "
                    "documents alone by the rule distinct"
                )
        if self.reference_source is not None:
            # Raises an error if a file is missing.
            self.reference_source.units()

    @cached_property
    def reference_source(self) -> Source | None:
        """Source of the documents of `folders`, or None without folders."""
        if not self.folders:
            return None
        # No document is too long, because the preparation that kept it has decided about that.
        return Source("documents", self.folders, max_record_bytes=LARGEST_RECORD_BYTES)

    @cached_property
    def banding(self) -> Banding:
        """Bands and rows, given or derived from the threshold."""
        if self.bands and self.rows:
            return Banding(self.bands, self.rows)
        for rows in range(self.permutations, 1, -1):
            bands = self.permutations // rows
            recall = 1 - (1 - self.threshold**rows) ** bands
            if recall >= RECALL:
                return Banding(bands, rows)
        return Banding(self.permutations, 1)

    @cached_property
    def _empty(self) -> "MinHash":
        from datasketch import MinHash

        return MinHash(self.permutations, seed=SEED, scheme="affine32", hashfunc=int)

    def signature(self, text: str, at_once: int = SHINGLES_AT_ONCE) -> Signature:
        """Compute the MinHash signature of a text.

        Args:
            text: Text.
            at_once: Shingles permuted at a time. It does not affect the result.
        """
        from xxhash import xxh3_64_intdigest

        bands, rows = self.banding
        shingles = np.unique((hash_runs(text, self.words) >> SHIFT).astype(np.uint32))
        if not shingles.size:
            return Signature(np.full(bands, xxh3_64_intdigest(text.encode()), np.uint64), shingles)
        minhash = self._empty.copy()
        for begin in range(0, shingles.size, at_once):
            minhash.update_batch(shingles[begin : begin + at_once].tolist())
        minima = minhash.hashvalues[: bands * rows].reshape(bands, rows)
        keys = np.array([xxh3_64_intdigest(band.tobytes()) for band in minima], np.uint64)
        return Signature(keys, shingles)

    def matches_bucket(self, number: int, shingles: np.ndarray, bucket: Bucket) -> list[int]:
        """Compare a text with earlier texts of the same key.

        Args:
            number: Text number, larger than those of earlier texts.
            shingles: Shingles of the text.
            bucket: Earlier texts. The text is added, unless the bucket is full or contains a text with the same shingles.

        Returns:
            Numbers of similar earlier texts.
        """
        matches = []
        has_equal = False
        for earlier in bucket:
            similarity = self._similarity(shingles, earlier.shingles)
            if similarity >= self.threshold:
                matches.append(earlier.number)
            if similarity >= 1:
                has_equal = True
        if not has_equal and len(bucket) < MAX_BUCKET:
            bucket.append(BucketText(number, shingles))
        return matches

    def _similarity(self, first: np.ndarray, second: np.ndarray) -> float:
        """Return the Jaccard similarity of two texts with equal keys, by their shingles."""
        num_common = np.intersect1d(first, second, assume_unique=True).size
        num_all = first.size + second.size - num_common
        if num_all == 0:
            # Texts without words share a key only if they are equal.
            return 1.0
        return num_common / num_all
