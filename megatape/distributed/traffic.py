"""Bytes that ranks send each other, by collective: in a real run, or on shapes alone in a group of torch's fake backend.

By convention, a collective costs what one of n ranks sends when it runs around a ring. If the whole (gathered, scattered or
exchanged) tensor has S bytes, an all-gather, reduce-scatter or all-to-all sends (n - 1) / n S, an all-reduce twice that. A
shift sends a tensor to the next rank of a ring.
"""

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from megatape.distributed.mesh import Axis
from megatape.utils.torch_internals import TorchDispatchMode, tree_leaves

ALL_GATHER = "all-gather"
REDUCE_SCATTER = "reduce-scatter"
ALL_REDUCE = "all-reduce"
ALL_TO_ALL = "all-to-all"
SHIFT = "shift"

# PyTorch's operators behind the collectives that this system and DeepSpeed call.
OPERATORS = {
    "_allgather_base_": ALL_GATHER,
    "allgather_": ALL_GATHER,
    "allgather_into_tensor_coalesced_": ALL_GATHER,
    "_reduce_scatter_base_": REDUCE_SCATTER,
    "reduce_scatter_": REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced_": REDUCE_SCATTER,
    "allreduce_": ALL_REDUCE,
    "allreduce_coalesced_": ALL_REDUCE,
    "alltoall_base_": ALL_TO_ALL,
    "alltoall_": ALL_TO_ALL,
}

OTHER = "other"  # process groups that are no axis of the mesh
FEW = 16  # numbers at most that all ranks exchange once a step

Sent = Counter[str]  # collective -> bytes


def sent_bytes(collective: str, whole: int, size: int) -> int:
    """Bytes that one of `size` ranks sends. whole: bytes of the whole tensor."""
    return (2 if collective == ALL_REDUCE else 1) * whole * (size - 1) // size


class CountTraffic(TorchDispatchMode):
    """Count what this rank sends inside the block by process group, DeepSpeed's collectives included.

    Single numbers, and the few that all ranks of a run exchange once a step (norms, losses, counts, flags), are left out.

    Args:
        axes: the axes to count; any other process group counts as OTHER.

    Attributes:
        sent: bytes by collective, for each axis.
        overlapped: bytes of these that are overlapped with computation, since their caller did not wait, for each axis.
        labels: names of the profiler ranges around the collectives.
    """

    def __init__(self, *axes: Axis) -> None:
        super().__init__()
        self.names = {axis.group.group_name: axis.name for axis in axes if axis.group is not None}
        self.labels: set[str] = set()
        self.sent: dict[str, Sent] = {name: Counter() for name in (*(axis.name for axis in axes), OTHER)}
        self.overlapped: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        group = dist.ProcessGroup.unbox(next(arg for arg in args if isinstance(arg, torch.ScriptObject) and _is_group(arg)))
        name = self.names.get(group.group_name, OTHER)
        operator = func.overloadpacket.__name__
        collective = OPERATORS.get(operator, operator.strip("_"))
        tensors = [[leaf for leaf in tree_leaves(arg) if isinstance(leaf, Tensor)] for arg in args[:2]]
        most = max(tensor.numel() for tensor in tensors[0] + tensors[1])
        if group.size() > 1 and most > (FEW if name == OTHER else 1):
            whole = max(sum(tensor.nbytes for tensor in side) for side in tensors)
            sent = sent_bytes(collective, whole, group.size())
            if splits := _argument(func, "input_split_sizes", args):  # an uneven exchange: what leaves this rank
                sent = (sum(splits) - splits[group.rank()]) * tensors[1][0].element_size()
                collective = SHIFT if name == "context" else collective
            self.sent[name][collective] += sent
            self.overlapped[name] += sent * bool(_argument(func, "async_op", args))
        self.labels.add(label := f"{collective} ({name} ranks)")
        with record_function(label):
            return func(*args, **(kwargs or {}))


def _argument(func: Any, name: str, args: tuple[Any, ...]) -> Any:
    """The argument of this name. False for older versions of torch, whose operators do not have it."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[index] if index < len(args) else argument.default_value
    return False


def _is_group(value: torch.ScriptObject) -> bool:
    return str(value._type()).endswith("c10d.ProcessGroup")
