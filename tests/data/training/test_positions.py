"""Positions of a sample's tokens: offsets and draws depend only on the seed and the sample's place in the run."""

import numpy as np
import pytest

from megatape.data.training.positions import FROM_ZERO, Positions

LENGTH = 16


def test_from_zero() -> None:
    assert FROM_ZERO.training(LENGTH, 1, 7).tolist() == FROM_ZERO.evaluation(LENGTH, 1).tolist() == list(range(LENGTH))


def test_random_offsets() -> None:
    def offsets(max_offset: int) -> list[int]:
        rows = [Positions(max_offset).training(LENGTH, 3, place) for place in range(1600)]
        assert all(np.array_equal(np.diff(row), np.ones(LENGTH - 1)) for row in rows)
        return [int(row[0]) for row in rows]

    assert set(offsets(3)) == {0, 1, 2, 3}
    assert np.bincount(offsets(3)).min() > 300
    assert max(offsets(1000)) > 900
    assert Positions(1000).evaluation(LENGTH, 3).tolist() == list(range(LENGTH))


def test_draws() -> None:
    """Draws are sorted, distinct and cover the range; they differ by place and seed, and are reproducible."""
    positions = Positions(drawn_from=64)
    rows = [positions.training(LENGTH, 3, place) for place in range(400)]
    assert all((np.diff(row) > 0).all() for row in rows)
    assert len({tuple(row) for row in rows}) == 400
    counts = np.bincount(np.concatenate(rows), minlength=64)
    assert len(counts) == 64
    assert counts.min() > 60  # 100 expected each
    assert np.array_equal(rows[5], positions.training(LENGTH, 3, 5))
    assert not np.array_equal(rows[5], positions.training(LENGTH, 4, 5))


def test_one_draw_for_each_seed_and_length_in_evaluation() -> None:
    positions = Positions(drawn_from=64)
    fixed = positions.evaluation(LENGTH, 3)
    assert np.array_equal(fixed, positions.evaluation(LENGTH, 3))
    assert not np.array_equal(fixed, positions.evaluation(LENGTH, 4))
    assert not np.array_equal(fixed, positions.evaluation(2 * LENGTH, 3)[:LENGTH])
    assert positions.evaluation(64, 3).tolist() == list(range(64))


def test_more_tokens_than_positions() -> None:
    with pytest.raises(ValueError, match=r"65 tokens need distinct positions from 0 .. 63 .* raise model.max_positions"):
        Positions(drawn_from=64).evaluation(65, 3)
