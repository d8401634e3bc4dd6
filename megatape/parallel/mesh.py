"""The ranks of a run as a mesh of named axes: each axis divides one thing, such as the samples or the model."""

from dataclasses import dataclass
from functools import cache
from math import prod

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

from megatape.runtime.topology import Topology


@dataclass(frozen=True)
class Axis:
    """The ranks that differ from this one along one axis of the mesh only, and this rank's index among them.

    group: their process group; None where nothing is exchanged, such as on an axis of size 1."""

    name: str
    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None


SINGLE = Axis("tensor")  # the tensor axis of a model that one rank holds whole


@dataclass(frozen=True)
class Mesh:
    """The axes of a run, in the order that numbers the ranks: those of the last axis, which communicate most, are adjacent.

    data: ranks that train on different samples; tensor: T ranks that share one replica of the model."""

    data: Axis
    tensor: Axis


def make_mesh(topology: Topology, tensor_size: int) -> Mesh:
    """This rank's axes with their process groups. Collective: every rank of the run makes all groups in the same order."""
    sizes = {"data": topology.world_size // tensor_size, "tensor": tensor_size}
    return Mesh(**{name: _make_axis(name, sizes, topology.rank) for name in sizes})


@cache
def fake_axis(name: str, size: int) -> Axis:
    """Rank 0 of `size` ranks that do not exist. torch's fake backend sends nothing: this is for counting on shapes alone.

    The group is independent of the default process group, whether there is one or not."""
    group = dist.ProcessGroup(dist.HashStore(), 0, size)
    kind = dist.ProcessGroup.BackendType.CUSTOM
    backend = FakeProcessGroup._create_internal(0, size)
    for device in ("cpu", "meta"):
        group._register_backend(torch.device(device), kind, backend)
    group._set_default_backend(kind)
    group._set_group_name(f"fake {name}")  # type: ignore[arg-type]
    return Axis(name, size, 0, group)


def lines(name: str, sizes: dict[str, int]) -> list[list[int]]:
    """The ranks along the axis `name`, one list for each position on the other axes. sizes: of all axes, in order."""
    mesh = torch.arange(prod(sizes.values()), device="cpu").view(*sizes.values())
    return mesh.movedim(list(sizes).index(name), -1).reshape(-1, sizes[name]).tolist()


def _make_axis(name: str, sizes: dict[str, int], rank: int) -> Axis:
    ranks = lines(name, sizes)
    group, _ = dist.new_subgroups_by_enumeration(ranks)
    index = next(line.index(rank) for line in ranks if rank in line)
    return Axis(name, sizes[name], index, group)
