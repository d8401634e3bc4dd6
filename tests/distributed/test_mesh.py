"""The mesh groups the right ranks along each axis."""

import itertools
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from megatape.distributed import mesh
from megatape.distributed.collectives import all_gather
from megatape.distributed.mesh import fake_axis, lines, make_mesh
from megatape.distributed.topology import Topology
from megatape.distributed.traffic import ALL_GATHER, TrafficCounter
from tests.helpers.processes.workers import run_workers

SIZES = {"data": 2, "sequence": 3, "tensor": 4}
SIZES_OF_ALL = {"data": 2, "context": 2, "sequence": 3, "tensor": 2}


@pytest.mark.parametrize(("name", "first"), [("data", [0, 12]), ("sequence", [0, 4, 8]), ("tensor", [0, 1, 2, 3])])
def test_lines_are_those_of_the_numbering(name: str, first: list[int]) -> None:
    """rank = (data x 3 + sequence) x 4 + tensor. Ranks of a line only differ in their index on its axis."""
    axis_lines = lines((name,), SIZES)
    assert axis_lines[0] == first
    assert sorted(itertools.chain(*axis_lines)) == list(range(24))
    for line in axis_lines:
        places = [{"data": rank // 12, "sequence": rank // 4 % 3, "tensor": rank % 4} for rank in line]
        assert [place.pop(name) for place in places] == list(range(SIZES[name]))
        assert all(place == places[0] for place in places)


def test_fake_ranks_leave_no_default_group() -> None:
    """The planner counts a run's collectives without processes."""
    axis = fake_axis("tensor", 4)
    with TrafficCounter(axis) as traffic:
        gathered = all_gather(torch.zeros(2, 3, 5), axis)
    assert gathered.shape == (2, 12, 5)
    assert traffic.sent["tensor"] == {ALL_GATHER: 3 * 2 * 3 * 5 * 4}
    assert not dist.is_initialized()


def test_joined_axes_are_neighbors_in_the_numbering() -> None:
    assert lines(("data", "sequence"), SIZES)[1] == [1, 5, 9, 13, 17, 21]
    assert lines(("data", "sequence", "tensor"), SIZES) == [list(range(24))]
    assert lines(("context",), SIZES_OF_ALL)[:2] == [[0, 6], [1, 7]]
    assert lines(("context", "sequence", "tensor"), SIZES_OF_ALL) == [list(range(12)), list(range(12, 24))]


def test_groups_of_a_mesh(tmp_path: Path) -> None:
    """Groups follow from the sizes of the axes, without a group for an axis of one rank."""
    results = run_workers("tests.distributed.test_mesh:group_ranks", 4, None, tmp_path)
    tensor = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    data = {0: [0, 2], 1: [1, 3], 2: [0, 2], 3: [1, 3]}
    for rank, groups in enumerate(results):
        assert groups["two axes"] == {
            "data": data[rank],
            "context": None,
            "sequence": None,
            "tensor": tensor[rank],
            "batch": data[rank],
            "sample": tensor[rank],
            "replicate": data[rank],
        }
        assert groups["three axes"] == {
            "data": data[rank],
            "context": None,
            "sequence": tensor[rank],
            "tensor": None,
            "batch": data[rank],
            "sample": tensor[rank],
            "replicate": [0, 1, 2, 3],
        }
        assert groups["one rank for the data"] == {
            "data": [rank],
            "context": None,
            "sequence": None,
            "tensor": [0, 1, 2, 3],
            "batch": [rank],
            "sample": [0, 1, 2, 3],
            "replicate": [rank],
        }
        assert groups["calls"] == 2, "a group of the same ranks is made once"


def group_ranks(_: None, topology: Topology) -> dict[str, Any]:
    """Return the ranks of each group of three meshes, and how often groups were created for the first one."""
    made = []

    def counted(ranks: list[list[int]]) -> dist.ProcessGroup:
        made.append(ranks)
        return make_group(ranks)

    make_group = mesh._make_group
    with patch.object(mesh, "_make_group", counted):
        groups: dict[str, Any] = {"two axes": _ranks(make_mesh(topology, {"tensor": 2}))}
    groups["calls"] = len(made)
    groups["one rank for the data"] = _ranks(make_mesh(topology, {"tensor": 4}))
    groups["three axes"] = _ranks(make_mesh(topology, {"sequence": 2}))
    return groups


def _ranks(made: mesh.Mesh) -> dict[str, list[int] | None]:
    groups = {name: made[name].group for name in (*mesh.AXES, *mesh.GROUPS)}
    return {name: dist.get_process_group_ranks(group) if group else None for name, group in groups.items()}
