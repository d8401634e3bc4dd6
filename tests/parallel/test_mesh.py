"""Which ranks an axis of the mesh joins."""

import pytest
import torch
import torch.distributed as dist

from megatape.parallel.collectives import all_gather
from megatape.parallel.mesh import fake_axis, lines
from megatape.parallel.traffic import ALL_GATHER, CountTraffic

SIZES = {"data": 2, "sequence": 3, "tensor": 4}


@pytest.mark.parametrize(("name", "first"), [("data", [0, 12]), ("sequence", [0, 4, 8]), ("tensor", [0, 1, 2, 3])])
def test_lines_are_those_of_the_numbering(name: str, first: list[int]) -> None:
    """rank = (data x 3 + sequence) x 4 + tensor; ranks of one line differ only in their place on its axis."""
    found = lines(name, SIZES)
    assert found[0] == first
    assert sorted(rank for line in found for rank in line) == list(range(24))
    for line in found:
        places = [{"data": rank // 12, "sequence": rank // 4 % 3, "tensor": rank % 4} for rank in line]
        assert [place.pop(name) for place in places] == list(range(SIZES[name]))
        assert all(place == places[0] for place in places)


def test_fake_ranks_leave_no_default_group() -> None:
    """The planner counts a run's collectives without processes."""
    axis = fake_axis("tensor", 4)
    with CountTraffic(axis) as traffic:
        gathered = all_gather(torch.zeros(2, 3, 5), axis)
    assert gathered.shape == (2, 12, 5)
    assert traffic.sent["tensor"] == {ALL_GATHER: 3 * 2 * 3 * 5 * 4}
    assert not dist.is_initialized()
