"""The ranks of a run as a mesh of named axes: each axis divides one thing, such as the samples or the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

import torch
import torch.distributed as dist

from megatape.distributed.topology import Topology
from megatape.utils.torch_internals import fake_group

# Outermost first: the ranks of the last axis, which communicate most, are adjacent.
#   data      ranks that train on different samples
#   context   P ranks that divide the tokens of the same samples, each with a replica of the model, in attention too
#   sequence  S ranks that divide a context rank's tokens, each with a replica of the model, and in attention its heads
#   tensor    T ranks that share one replica of the model
AXES = ("data", "context", "sequence", "tensor")

# Groups by their purpose, and the axes that each joins. Code names the purpose where an axis may be added to it.
#   batch      ranks that read different samples
#   sample     ranks that read the same samples and divide their tokens
#   replicate  ranks that train the same weights, over which ZeRO divides its state
GROUPS = {
    "batch": ("data",),
    "sample": ("context", "sequence", "tensor"),
    "replicate": ("data", "context", "sequence"),
}


@dataclass(frozen=True)
class Axis:
    """The ranks that differ from this one along one axis of the mesh, or along several joined ones.

    Attributes:
        name: Name of the axis, or of the joined axes.
        size: Number of these ranks.
        rank: Index of this rank among them.
        group: Their process group; None if they exchange nothing, such as on a tensor axis of size 1.
    """

    name: str
    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None


# The tensor axis of a model that one rank holds whole, and the other axes of whole samples
SINGLE = Axis("tensor")

# The axes of a run, and the groups that join some of them, by name
Mesh = dict[str, Axis]


def make_mesh(topology: Topology, sizes: Mapping[str, int]) -> Mesh:
    """Return this rank's axes with their process groups. Collective: every rank makes all groups in the same order.

    Args:
        topology: All ranks.
        sizes: Sizes of the axes but the first, which has the remaining ranks; 1 for an axis that is not named.
    """
    rest = {name: sizes.get(name, 1) for name in AXES[1:]}
    shape = {AXES[0]: topology.world_size // prod(rest.values())} | rest
    made: dict[tuple[int, ...], Axis] = {}
    axes: Mesh = {}
    for name, joined in ({name: (name,) for name in AXES} | GROUPS).items():
        ranks = lines(joined, shape)
        line = next(line for line in ranks if topology.rank in line)
        if name in rest and len(line) == 1:
            axes[name] = Axis(name)
            continue
        # A group that adds only axes of size 1 to another is the same.
        key = tuple(line)
        if key not in made:
            group = None
            # DeepSpeed needs the group over which it divides its state, even if that is a single rank.
            if len(line) > 1 or name == AXES[0]:
                group = _make_group(ranks)
            made[key] = Axis(name, len(line), line.index(topology.rank), group)
        axes[name] = made[key]
    return axes


@cache
def fake_axis(name: str, size: int) -> Axis:
    """Return rank 0 of `size` ranks that do not exist, whose group sends nothing. It is for counting on shapes alone.

    The group is independent of the default process group, whether there is one or not.
    """
    return Axis(name, size, 0, fake_group(name, size))


def lines(joined: tuple[str, ...], shape: Mapping[str, int]) -> list[list[int]]:
    """Return the ranks along the joined axes, one list for each position on the other axes.

    Args:
        joined: Names of neighboring axes, outermost first.
        shape: Size of every axis, outermost first.
    """
    mesh = torch.arange(prod(shape.values()), device="cpu").view(*shape.values())
    names = list(shape)
    dims = [names.index(name) for name in joined]
    last_dims = list(range(-len(dims), 0))
    line_length = prod(shape[name] for name in joined)
    return mesh.movedim(dims, last_dims).reshape(-1, line_length).tolist()


def _make_group(ranks: list[list[int]]) -> dist.ProcessGroup:
    """Return the process group of this rank's line, by one call if the backend can split the group of all ranks."""
    default = dist.group.WORLD
    assert default is not None
    if default.bound_device_id is not None:
        # NCCL, whose communicator exists.
        group = dist.split_group(default, ranks)
    else:
        group, _ = dist.new_subgroups_by_enumeration(ranks)
    assert group is not None
    return group
