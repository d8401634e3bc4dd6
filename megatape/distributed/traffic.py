"""Counting the bytes that a rank sends, by collective: in a real run, or on shapes alone with torch's fake backend.

By convention, a collective costs the bytes that one of n ranks sends if it runs around a ring. For S bytes in the whole
(gathered, scattered or exchanged) tensor, all-gather, reduce-scatter and all-to-all send (n - 1) / n S, and all-reduce twice
that. A shift sends one tensor to the next rank in a ring.
"""

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from megatape.distributed.mesh import Axis
from megatape.utils.torch_internals import OpOverload, TorchDispatchMode, tree_leaves

ALL_GATHER = "all-gather"
REDUCE_SCATTER = "reduce-scatter"
ALL_REDUCE = "all-reduce"
ALL_TO_ALL = "all-to-all"
SHIFT = "shift"

# Collective behind each PyTorch operator that MegaTAPE and DeepSpeed call
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

# Name of all process groups that are not an axis of the mesh
OTHER = "other"

# Maximum size of the tensors that all ranks exchange once per step (norms, losses, counts, flags)
MAX_STEP_NUMBERS = 16

# Bytes sent, by collective
Sent = Counter[str]


def sent_bytes(collective: str, whole: int, size: int) -> int:
    """Return the bytes sent by one rank, see above.

    Args:
        collective: Name of the collective.
        whole: Bytes in the whole tensor.
        size: Number of ranks.
    """
    rounds = 1
    if collective == ALL_REDUCE:
        rounds = 2
    return rounds * whole * (size - 1) // size


class CountTraffic(TorchDispatchMode):
    """Counts the bytes that this rank sends inside the block, by process group, including DeepSpeed's collectives.

    Single numbers, and the few numbers that all ranks exchange once per step, are not counted.

    Args:
        axes: Axes to count separately. All other process groups count as OTHER.

    Attributes:
        sent: Bytes by collective, for each axis.
        overlapped: Bytes in `sent` that overlap with computation, because the caller did not wait, for each axis.
        labels: Names of the profiler ranges around the collectives.
    """

    def __init__(self, *axes: Axis) -> None:
        super().__init__()
        self.names = {axis.group.group_name: axis.name for axis in axes if axis.group is not None}
        self.labels: set[str] = set()
        self.sent: dict[str, Sent] = {axis.name: Counter() for axis in axes}
        self.sent[OTHER] = Counter()
        self.overlapped: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func.namespace != "c10d":
            return func(*args, **kwargs)
        group = _process_group(args)
        name = self.names.get(group.group_name, OTHER)
        operator = func.overloadpacket.__name__
        collective = OPERATORS.get(operator, operator.strip("_"))
        collective = self._count(func, args, group, name, collective)
        label = f"{collective} ({name} ranks)"
        self.labels.add(label)
        with record_function(label):
            return func(*args, **kwargs)

    def _count(self, func: OpOverload, args: tuple[object, ...], group: dist.ProcessGroup, name: str, collective: str) -> str:
        """Count a call of a collective in the group `name`. Return the collective, which may turn out to be a shift."""
        # Outputs, then inputs
        sides = [_tensors(arg) for arg in args[:2]]
        largest = max(tensor.numel() for side in sides for tensor in side)
        uncounted = 1
        if name == OTHER:
            uncounted = MAX_STEP_NUMBERS
        if group.size() == 1 or largest <= uncounted:
            return collective

        whole = max(sum(tensor.nbytes for tensor in side) for side in sides)
        sent = sent_bytes(collective, whole, group.size())
        splits = _argument(func, "input_split_sizes", args)
        if isinstance(splits, list | tuple) and splits:
            # An all-to-all with uneven pieces. Count the elements that leave this rank.
            _, inputs = sides
            sent = (sum(splits) - splits[group.rank()]) * inputs[0].element_size()
            if name == "context":
                collective = SHIFT
        self.sent[name][collective] += sent
        if _argument(func, "async_op", args):
            self.overlapped[name] += sent
        return collective


def _process_group(args: tuple[object, ...]) -> dist.ProcessGroup:
    """Return the process group among the arguments of a collective."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and str(arg._type()).endswith("c10d.ProcessGroup"):
            return dist.ProcessGroup.unbox(arg)
    raise TypeError("a collective has no process group among its arguments")


def _tensors(arg: object) -> list[Tensor]:
    """Return the tensors of an argument, which may be nested lists."""
    return [leaf for leaf in tree_leaves(arg) if isinstance(leaf, Tensor)]


def _argument(func: OpOverload, name: str, args: tuple[object, ...]) -> object:
    """Return the argument with this name, or False if the operator lacks it, as in older versions of torch."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            if index < len(args):
                return args[index]
            return argument.default_value
    return False
