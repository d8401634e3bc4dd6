"""Exact duplicates: the first in the order of the source stays."""

from pathlib import Path

import numpy as np
import pytest

from megatape.data.duplicates import document_hash, find_duplicates, listed, pack_hashes, seen_before


@pytest.mark.parametrize("at_once", [4, 64, 10**6])
def test_across_units_as_within_one(tmp_path: Path, at_once: int) -> None:
    """Compared in many parts or in one: what a set in memory finds, which is the definition."""
    generator = np.random.default_rng(0)
    units = [[f"document {number}" for number in generator.integers(0, 40, size)] for size in (30, 0, 1, 50)]
    files = [tmp_path / f"{number}.npy" for number in range(len(units))]
    for file, texts in zip(files, units, strict=True):
        np.save(file, pack_hashes([document_hash(text) for text in texts]))
    is_known = seen_before()
    wanted = [[number for number, text in enumerate(texts) if is_known(text)] for texts in units]
    found = find_duplicates(files, at_once)
    assert [numbers.tolist() for numbers in found] == wanted and any(wanted)
    for numbers, texts in zip(found, units, strict=True):
        is_duplicate = listed(numbers)
        assert [number for number, text in enumerate(texts) if is_duplicate(text)] == numbers.tolist()


def test_no_documents(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", pack_hashes([]))
    assert [numbers.size for numbers in find_duplicates([tmp_path / "0.npy"])] == [0]
