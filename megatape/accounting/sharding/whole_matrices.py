"""State, work and traffic of a whole-matrix optimizer (zero/update/whole_matrices.py) in one step."""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from math import prod

from torch import nn

from megatape.accounting.element_sizes import STATE_BYTES
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.shapes.trace import trace_parameters
from megatape.config import OptimizerConfig
from megatape.nn.parameters import is_sharded, spec_of
from megatape.optim.optimizer import is_whole, parameter_groups
from megatape.registry import OPTIMIZERS
from megatape.utils.values.rounding import divide_up, round_up
from megatape.zero.state.matrix_state import assign_owners

# Bytes per element of exchanged gradients and updates, which are in float32, whatever the precision.
EXCHANGED_BYTES = 4

# DeepSpeed pads the flat tensor of a group to a multiple of this number of elements on every rank
# (nccl_start_alignment_factor in runtime/zero/stage_1_and_2.py).
FLAT_MULTIPLE = 2


@dataclass(frozen=True)
class MatrixPlan:
    """Costs of updating whole matrices, zero for an optimizer that updates weights by element.

    Attributes:
        state: Bytes of optimizer state on the rank that has most.
        flops: FLOPs of the updates on the rank that computes most.
        sent: Bytes that a rank sends, averaged over ranks: gradients to owners, and updates back.
    """

    state: int
    flops: int
    sent: int


@dataclass(frozen=True)
class _Span:
    """Place of a weight in the flat tensor of its parameter group.

    Attributes:
        first: Index of the weight's first element.
        group_size: Elements in the flat tensor.
    """

    first: int
    group_size: int


@cache
def plan_matrices(layout: TrainingLayout) -> MatrixPlan:
    """Return the costs of updating whole matrices."""
    entry = OPTIMIZERS[layout.optimizer.kind]
    world_size = layout.world_size
    named_weights = trace_parameters(layout.workload).model.named_parameters()
    trained = {name: weight for name, weight in named_weights if weight.requires_grad}
    matrices = {name: weight for name, weight in trained.items() if is_whole(weight, layout.optimizer)}
    shapes = {name: spec_of(weight).shape for name, weight in matrices.items()}
    spans = _flat_spans(trained, layout.optimizer)

    state_bytes_of_rank = Counter({0: 0})
    flops_of_rank = Counter({0: 0})
    num_exchanged = 0
    for name, owner in assign_owners(shapes, entry, world_size).items():
        shape = shapes[name]
        for state_shape in entry.matrix_shapes(shape).values():
            state_bytes_of_rank[owner] += STATE_BYTES * prod(state_shape)
        flops_of_rank[owner] += entry.update_flops(shape)
        num_exchanged += _exchanged_elements(layout, matrices[name], prod(shape), spans[name], owner)
    sent = EXCHANGED_BYTES * num_exchanged // world_size
    return MatrixPlan(max(state_bytes_of_rank.values()), max(flops_of_rank.values()), sent)


def _exchanged_elements(layout: TrainingLayout, weight: nn.Parameter, whole: int, span: _Span, owner: int) -> int:
    """Return how many elements all ranks send for one matrix: gradients to its owner, and its update back.

    Args:
        layout: Layout of the run.
        weight: A rank's share of the matrix.
        whole: Elements in the whole matrix.
        span: Place of the share in the flat tensor of its parameter group.
        owner: Rank that updates the matrix.
    """
    local = weight.numel()
    if layout.zero.stage == 0:
        # The owner has a whole replica's gradients, and all replicas get the update.
        gradients = whole - local
        updates = (layout.world_size - 1) * local
        return gradients + updates

    tensor_size = layout.workload.parallel.tp
    on_owner = _master_elements(local, span, owner // tensor_size, layout.num_replicas, layout.zero.stage)
    copies = 1 if is_sharded(weight) else tensor_size
    gradients = whole - on_owner
    updates = copies * whole - on_owner
    return gradients + updates


def _flat_spans(trained: dict[str, nn.Parameter], optimizer: OptimizerConfig) -> dict[str, _Span]:
    """Return each weight's place in its parameter group's flat tensor, at stages 1 and 2."""
    spans: dict[str, _Span] = {}
    for group in parameter_groups(trained.items(), optimizer):
        sizes = [weight.numel() for weight in group["params"]]
        first = 0
        for name, size in zip(group["names"], sizes, strict=True):
            spans[name] = _Span(first, sum(sizes))
            first += size
    return spans


def _master_elements(local: int, span: _Span, data_rank: int, ranks: int, stage: int) -> int:
    """Return how many of a weight's `local` elements have their master weights on a data-parallel rank, at stages 1 to 3."""
    if stage == 3:
        # Each rank has an equal part of every weight.
        first = 0
        part = divide_up(local, ranks)
    else:
        # Each rank has an equal part of the flat tensor.
        first = span.first
        part = round_up(divide_up(span.group_size, ranks), FLAT_MULTIPLE)
    start = data_rank * part
    overlap = min(start + part, first + local) - max(start, first)
    return max(0, overlap)
