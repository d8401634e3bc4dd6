"""Bytes that a rank sends in one optimizer step, by group of ranks and collective.

Bytes are counted as in distributed/traffic.py, without single numbers (norms, losses). tests/accounting compares with real
runs.
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import cache

from megatape.accounting.element_sizes import GRADIENT_BYTES, elements
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.shapes.extrapolation import scaled
from megatape.accounting.shapes.trace import trace_micro_batch, trace_parameters
from megatape.accounting.sharding.gathered_weights import always_whole, gathered
from megatape.accounting.sharding.whole_matrices import plan_matrices
from megatape.accounting.traffic.model_traffic import model_traffic
from megatape.distributed.traffic import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Sent, sent_bytes
from megatape.nn.parameters import is_sharded


class RankGroup(Enum):
    """Group of ranks exchanging data. The first three are the mesh axes that share samples."""

    CONTEXT = "context"
    SEQUENCE = "sequence"
    TENSOR = "tensor"
    # Ranks training the same weights, across which ZeRO shards its state.
    REPLICAS = "replicas"
    # Ranks of a node sharing a second copy of the weights (zero.hpz_ranks).
    SECOND_COPY = "second copy"
    # All ranks, for a whole-matrix optimizer. Its bytes are averaged over ranks.
    ALL = "all"


@dataclass(frozen=True)
class Traffic:
    """Bytes that one rank sends in one optimizer step.

    Attributes:
        sent: Bytes by group and collective.
        overlapped: Share of the bytes overlapped with computation, by axis.
    """

    sent: dict[RankGroup, Sent]
    overlapped: dict[RankGroup, float]


@cache
def plan_traffic(layout: TrainingLayout) -> Traffic:
    """Return the bytes that a rank sends in an optimizer step, by group of ranks and collective."""
    workload = layout.workload
    sent: dict[RankGroup, Sent] = {}
    overlapped_bytes: dict[RankGroup, int] = {}
    for axis in workload.parallel.axes:
        traffic = model_traffic(workload, axis)
        sent[RankGroup(axis)] = scaled(traffic.sent, layout.num_micro_batches)
        overlapped_bytes[RankGroup(axis)] = traffic.overlapped * layout.num_micro_batches
    sent[RankGroup.TENSOR].update(_replicated_gradients(layout))
    overlapped = {}
    for group, num_bytes in overlapped_bytes.items():
        overlapped[group] = num_bytes / max(1, sent[group].total())

    if layout.zero.stage == 3:
        stage3 = _stage3(layout)
        sent[RankGroup.REPLICAS] = stage3.replicas
        sent[RankGroup.SECOND_COPY] = stage3.second_copy
    else:
        sent[RankGroup.REPLICAS] = _stages_0_to_2(layout)
        sent[RankGroup.SECOND_COPY] = Counter()
    matrix_bytes = plan_matrices(layout).sent
    sent[RankGroup.ALL] = +Counter({ALL_TO_ALL: matrix_bytes})
    return Traffic(sent, overlapped)


def _replicated_gradients(layout: TrainingLayout) -> Sent:
    """Return the bytes for summing gradients of replicated weights over tensor-parallel ranks, averaged over ranks."""
    workload = layout.workload
    tensor_size = workload.parallel.tp
    weights = []
    for parameter in trace_micro_batch(workload).model.parameters():
        if parameter.requires_grad and not is_sharded(parameter):
            weights.append(parameter)
    if tensor_size == 1 or not weights:
        return Counter()

    multiple = layout.num_replicas if layout.zero.stage == 3 else 1
    summed = sent_bytes(ALL_REDUCE, elements(weights, multiple) * GRADIENT_BYTES, tensor_size)
    if layout.zero.stage:
        # ZeRO has already sharded the gradients across the replicas.
        summed //= layout.num_replicas
    return Counter({ALL_REDUCE: summed})


def _stages_0_to_2(layout: TrainingLayout) -> Sent:
    """Return the bytes that ZeRO sends at stages 0 to 2."""
    stage = layout.zero.stage
    ranks = layout.num_replicas
    traced = trace_parameters(layout.workload)
    trainable = [parameter for parameter in traced.model.parameters() if parameter.requires_grad]
    sent: Sent = Counter()
    if stage == 0:
        # Trainable parameters without a gradient are reduced too, as zeros.
        sent[ALL_REDUCE] = sent_bytes(ALL_REDUCE, elements(trainable) * GRADIENT_BYTES, ranks)
        return +sent
    num_reductions = layout.num_micro_batches if stage == 2 else 1
    sent[ALL_REDUCE] = num_reductions * sent_bytes(ALL_REDUCE, elements(traced.trained) * GRADIENT_BYTES, ranks)
    sent[ALL_GATHER] = sent_bytes(ALL_GATHER, elements(trainable) * layout.workload.element_bytes, ranks)
    return +sent


@dataclass(frozen=True)
class _Stage3Traffic:
    """Bytes that ZeRO sends at stage 3, to all replicas, and to the ranks sharing a second copy of the weights."""

    replicas: Sent
    second_copy: Sent


def _stage3(layout: TrainingLayout) -> _Stage3Traffic:
    """Return the bytes that ZeRO sends at stage 3.

    With a second copy of the weights (zero.hpz_ranks), a step gathers each weight once from all replicas and then from the
    copy.
    """
    traced = trace_micro_batch(layout.workload)
    limits = layout.stage3_limits
    ranks = layout.num_replicas
    copy_ranks = layout.zero.hpz_ranks
    weight_bytes = layout.workload.element_bytes
    gathered_in_step = layout.num_micro_batches * gathered(traced.events, ranks, limits).elements
    from_replicas = gathered_in_step
    from_copy = 0
    if copy_ranks > 1:
        from_replicas = elements(traced.trained, ranks) - elements(always_whole(traced.trained, limits), ranks)
        from_copy = gathered_in_step - from_replicas
    # After each update, ranks gather the weights that stage 3 keeps whole.
    kept_whole = elements(always_whole(list(traced.model.parameters()), limits), ranks)

    replicas: Sent = Counter()
    replicas[ALL_GATHER] = sent_bytes(ALL_GATHER, (from_replicas + kept_whole) * weight_bytes, ranks)
    reduced = traced.trained
    if layout.workload.compile:
        # If a weight of a compiled block gets no gradient, DeepSpeed reduces zeros.
        reduced = [parameter for parameter in traced.model.parameters() if parameter.requires_grad]
    gradient_bytes = elements(reduced, ranks) * GRADIENT_BYTES
    replicas[REDUCE_SCATTER] = layout.num_micro_batches * sent_bytes(REDUCE_SCATTER, gradient_bytes, ranks)
    second_copy: Sent = Counter()
    second_copy[ALL_GATHER] = sent_bytes(ALL_GATHER, from_copy * weight_bytes, copy_ranks)
    # `+` drops collectives that send nothing.
    return _Stage3Traffic(+replicas, +second_copy)
