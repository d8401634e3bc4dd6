"""Positions of a sample's tokens: offsets and draws depend only on the seed and the sample's position in the run."""

import numpy as np
import pytest

from megatape.data.training.batches.positions import FROM_ZERO, Positions

LENGTH = 16


def random_offsets(max_offset: int) -> list[int]:
    """Return the offsets of many samples, after checking that the positions of each are consecutive."""
    positions = Positions(max_offset)
    offsets = []
    for consumed in range(1600):
        row = positions.training(LENGTH, 3, consumed)
        assert np.array_equal(np.diff(row), np.ones(LENGTH - 1))
        offsets.append(int(row[0]))
    return offsets


def test_positions_count_from_zero_by_default() -> None:
    expected = list(range(LENGTH))
    assert FROM_ZERO.training(LENGTH, 1, 7).tolist() == expected
    assert FROM_ZERO.evaluation(LENGTH, 1).tolist() == expected


def test_offsets_are_uniform_up_to_the_maximum() -> None:
    offsets = random_offsets(3)
    assert set(offsets) == {0, 1, 2, 3}
    assert np.bincount(offsets).min() > 300
    assert max(random_offsets(1000)) > 900


def test_evaluation_uses_no_offset() -> None:
    assert Positions(1000).evaluation(LENGTH, 3).tolist() == list(range(LENGTH))


def test_draws_are_sorted_distinct_and_cover_the_range() -> None:
    positions = Positions(drawn_from=64)
    rows = [positions.training(LENGTH, 3, consumed) for consumed in range(400)]
    for row in rows:
        assert (np.diff(row) > 0).all()

    counts = np.bincount(np.concatenate(rows), minlength=64)
    assert len(counts) == 64
    assert counts.min() > 60  # 100 expected each


def test_draws_differ_by_position_and_seed_and_are_reproducible() -> None:
    positions = Positions(drawn_from=64)
    rows = [positions.training(LENGTH, 3, consumed) for consumed in range(400)]
    assert len({tuple(row) for row in rows}) == 400
    assert np.array_equal(rows[5], positions.training(LENGTH, 3, 5))
    assert not np.array_equal(rows[5], positions.training(LENGTH, 4, 5))


def test_evaluation_has_one_draw_for_each_seed_and_length() -> None:
    positions = Positions(drawn_from=64)
    draw = positions.evaluation(LENGTH, 3)
    assert np.array_equal(draw, positions.evaluation(LENGTH, 3))
    assert not np.array_equal(draw, positions.evaluation(LENGTH, 4))
    assert not np.array_equal(draw, positions.evaluation(2 * LENGTH, 3)[:LENGTH])
    assert positions.evaluation(64, 3).tolist() == list(range(64))


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"65 tokens need distinct positions from 0 .. 63 .* raise model.max_positions"):
        Positions(drawn_from=64).evaluation(65, 3)
