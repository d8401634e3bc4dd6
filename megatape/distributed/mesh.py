"""Mesh of a run's ranks with named axes. Each axis splits one thing, such as samples, tokens or weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

import torch
import torch.distributed as dist

from megatape.distributed.topology import Topology
from megatape.utils.pytorch.torch_internals import fake_group

# Outermost first. Ranks along the last axis communicate most, so they are adjacent.
#   data      ranks training on different samples
#   context   P ranks sharing samples: each has some tokens, in attention too, and a replica of the model
#   sequence  S ranks sharing a context rank's tokens: each has some tokens, in attention some heads, and a replica of the model
#   tensor    T ranks sharing one replica of the model
AXES = ("data", "context", "sequence", "tensor")

# Groups joining several axes, named by purpose, so that an axis can be added to a group without changing its users.
#   batch      ranks reading different samples
#   sample     ranks reading the same samples and splitting the tokens
#   replicate  ranks training the same weights. ZeRO shards its state across them.
GROUPS = {
    "batch": ("data",),
    "sample": ("context", "sequence", "tensor"),
    "replicate": ("data", "context", "sequence"),
}


@dataclass(frozen=True)
class Axis:
    """Ranks along one axis of the mesh, or along several joined ones, this rank included.

    Attributes:
        name: Name of the axis or the group of axes.
        size: Number of ranks.
        rank: Index of this rank among them.
        group: Process group, or None if the ranks exchange nothing, such as on a tensor axis of size 1.
    """

    name: str
    size: int = 1
    rank: int = 0
    group: dist.ProcessGroup | None = None


# Axis of a single rank, for models that are not sharded and samples that are not split.
SINGLE = Axis("single")

# Axes and groups of a run, by name.
Mesh = dict[str, Axis]


def make_mesh(topology: Topology, sizes: Mapping[str, int]) -> Mesh:
    """Return this rank's axes with their process groups. Collective, because all ranks create groups in the same order.

    Args:
        topology: Ranks of this process.
        sizes: Sizes of the axes, by default 1. The first axis, data, has the remaining ranks.
    """
    inner_sizes = {name: sizes.get(name, 1) for name in AXES[1:]}
    num_data_ranks = topology.world_size // prod(inner_sizes.values())
    shape = {AXES[0]: num_data_ranks} | inner_sizes
    joined_axes = {name: (name,) for name in AXES} | GROUPS

    axes_by_ranks: dict[tuple[int, ...], Axis] = {}
    axes: Mesh = {}
    for name, joined in joined_axes.items():
        ranks = lines(joined, shape)
        line = next(line for line in ranks if topology.rank in line)
        if name in inner_sizes and len(line) == 1:
            axes[name] = Axis(name)
            continue
        # Groups of the same ranks are the same group: they differ only by axes of size 1.
        key = tuple(line)
        if key not in axes_by_ranks:
            group = None
            # DeepSpeed needs the group across which it shards its state, even if that is a single rank.
            if len(line) > 1 or name == AXES[0]:
                group = _make_group(ranks)
            axes_by_ranks[key] = Axis(name, len(line), line.index(topology.rank), group)
        axes[name] = axes_by_ranks[key]
    return axes


@cache
def fake_axis(name: str, size: int) -> Axis:
    """Return an axis of ranks that do not exist, for counting on shapes alone. Its group sends nothing.

    The group does not depend on the default process group, which may be missing.
    """
    return Axis(name, size, 0, fake_group(name, size))


def lines(joined: tuple[str, ...], shape: Mapping[str, int]) -> list[list[int]]:
    """Return the ranks along some joined axes, one list for each position on the remaining axes.

    Args:
        joined: Names of neighboring axes, outermost first.
        shape: Size of each axis, outermost first.
    """
    mesh = torch.arange(prod(shape.values()), device="cpu").view(*shape.values())
    names = list(shape)
    dims = [names.index(name) for name in joined]
    last_dims = list(range(-len(dims), 0))
    line_length = prod(shape[name] for name in joined)
    return mesh.movedim(dims, last_dims).reshape(-1, line_length).tolist()


def _make_group(ranks: list[list[int]]) -> dist.ProcessGroup:
    """Create the process groups of all lines of ranks, and return this rank's."""
    default = dist.group.WORLD
    assert default is not None
    if default.bound_device_id is not None:
        # NCCL can split its communicator of all ranks in a single call.
        group = dist.split_group(default, ranks)
    else:
        group, _ = dist.new_subgroups_by_enumeration(ranks)
    assert group is not None
    return group
