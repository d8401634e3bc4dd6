"""Which ranks an axis of the mesh joins."""

import pytest

from megatape.parallel.mesh import lines

SIZES = {"data": 2, "sequence": 3, "tensor": 4}


@pytest.mark.parametrize(("name", "first"), [("data", [0, 12]), ("sequence", [0, 4, 8]), ("tensor", [0, 1, 2, 3])])
def test_lines_are_those_of_the_numbering(name: str, first: list[int]) -> None:
    """rank = (data x 3 + sequence) x 4 + tensor; the ranks of one line differ in their place on its axis alone."""
    found = lines(name, SIZES)
    assert found[0] == first
    assert sorted(rank for line in found for rank in line) == list(range(24))
    for line in found:
        places = [{"data": rank // 12, "sequence": rank // 4 % 3, "tensor": rank % 4} for rank in line]
        assert [place.pop(name) for place in places] == list(range(SIZES[name]))
        assert all(place == places[0] for place in places)
