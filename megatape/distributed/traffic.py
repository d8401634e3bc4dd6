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
from megatape.utils.pytorch.torch_internals import OpOverload, TorchDispatchMode, tree_leaves

ALL_GATHER = "all-gather"
REDUCE_SCATTER = "reduce-scatter"
ALL_REDUCE = "all-reduce"
ALL_TO_ALL = "all-to-all"
SHIFT = "shift"

# Collective behind each PyTorch operator that MegaTAPE and DeepSpeed call.
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

# Name of all process groups that are not an axis of the mesh.
OTHER = "other"

# Maximum size of the tensors that all ranks exchange once per step (norms, losses, counts, flags).
MAX_STEP_NUMBERS = 16

# Bytes sent, by collective.
Sent = Counter[str]


def sent_bytes(collective: str, whole: int, size: int) -> int:
    """Return the bytes sent by one rank, see above.

    Args:
        collective: Name of the collective.
        whole: Bytes in the whole tensor.
        size: Number of ranks.
    """
    rounds = 2 if collective == ALL_REDUCE else 1
    return rounds * whole * (size - 1) // size


class TrafficCounter(TorchDispatchMode):
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
        self._names = {axis.group.group_name: axis.name for axis in axes if axis.group is not None}
        self.labels: set[str] = set()
        self.sent: dict[str, Sent] = {axis.name: Counter() for axis in axes}
        self.sent[OTHER] = Counter()
        self.overlapped: Counter[str] = Counter()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile work while counting. By default, it compiles nothing while a dispatch mode is active."""
        return True

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
        name = self._names.get(group.group_name, OTHER)
        collective = _collective(func, args, name)
        if group.size() > 1 and not _is_small(args, name):
            num_bytes = _sent_by_call(func, args, collective, group)
            self.sent[name][collective] += num_bytes
            if _argument(func, "async_op", args):
                self.overlapped[name] += num_bytes
        label = f"{collective} ({name} ranks)"
        self.labels.add(label)
        with record_function(label):
            return func(*args, **kwargs)


def _collective(func: OpOverload, args: tuple[object, ...], name: str) -> str:
    """Return the collective behind a call in the group `name`. Context-parallel ranks shift tensors by uneven all-to-alls."""
    if name == "context" and _split_sizes(func, args):
        return SHIFT
    operator = func.overloadpacket.__name__
    return OPERATORS.get(operator, operator.strip("_"))


def _is_small(args: tuple[object, ...], name: str) -> bool:
    """Whether a call exchanges single numbers, or the few numbers that all ranks exchange once per step."""
    limit = MAX_STEP_NUMBERS if name == OTHER else 1
    outputs, inputs = _outputs_and_inputs(args)
    return max(tensor.numel() for tensor in outputs + inputs) <= limit


def _sent_by_call(func: OpOverload, args: tuple[object, ...], collective: str, group: dist.ProcessGroup) -> int:
    """Return the bytes that this rank sends in a call."""
    outputs, inputs = _outputs_and_inputs(args)
    splits = _split_sizes(func, args)
    if splits:
        # The pieces are uneven. Count the elements that leave this rank.
        return (sum(splits) - splits[group.rank()]) * inputs[0].element_size()
    whole = max(sum(tensor.nbytes for tensor in side) for side in (outputs, inputs))
    return sent_bytes(collective, whole, group.size())


def _outputs_and_inputs(args: tuple[object, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors among the first two arguments of a collective."""
    inputs = args[1] if len(args) > 1 else ()
    return _tensors(args[0]), _tensors(inputs)


def _split_sizes(func: OpOverload, args: tuple[object, ...]) -> list[int]:
    """Return the elements that an uneven all-to-all sends to each rank; empty for all other calls."""
    sizes = _argument(func, "input_split_sizes", args)
    if isinstance(sizes, list | tuple):
        return list(sizes)
    return []


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
