"""Bytes that a rank sends in one optimizer step, by group of ranks and collective.

Bytes are counted as in distributed/traffic.py, without single numbers (norms, losses). tests/accounting compares with real
runs.
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import cache

from megatape.accounting.element_sizes import GRADIENT_BYTES, elements
from megatape.accounting.extrapolation import scaled
from megatape.accounting.gathered_weights import always_whole, gathered
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.model_traffic import model_traffic
from megatape.accounting.trace import trace_micro_batch, trace_parameters
from megatape.accounting.whole_matrices import plan_matrices
from megatape.distributed.traffic import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Sent, sent_bytes


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
    """Plan a rank's traffic."""
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
        sent[RankGroup.REPLICAS], sent[RankGroup.SECOND_COPY] = _stage3(layout)
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
        is_replicated = not hasattr(parameter, "partition_dim")
        if parameter.requires_grad and is_replicated:
            weights.append(parameter)
    if tensor_size == 1 or not weights:
        return Counter()

    multiple = 1
    if layout.zero.stage == 3:
        multiple = layout.num_replicas
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
    reductions = 1
    if stage == 2:
        reductions = layout.num_micro_batches
    sent[ALL_REDUCE] = reductions * sent_bytes(ALL_REDUCE, elements(traced.trained) * GRADIENT_BYTES, ranks)
    sent[ALL_GATHER] = sent_bytes(ALL_GATHER, elements(trainable) * layout.workload.element_bytes, ranks)
    return +sent


def _stage3(layout: TrainingLayout) -> tuple[Sent, Sent]:
    """Return the bytes that ZeRO sends at stage 3, and those between ranks sharing a second copy of the weights."""
    traced = trace_micro_batch(layout.workload)
    limits = layout.stage3_limits
    ranks = layout.num_replicas
    copy_ranks = layout.zero.hpz_ranks
    weight_bytes = layout.workload.element_bytes
    gathered_elements = layout.num_micro_batches * gathered(traced.events, ranks, limits).elements
    copied_elements = 0  # gathered from the second copy
    if copy_ranks > 1:
        sharded = elements(traced.trained, ranks) - elements(always_whole(traced.trained, limits), ranks)
        copied_elements = gathered_elements - sharded
        gathered_elements = sharded
    # Weights that are always gathered are gathered again after each update.
    gathered_elements += elements(always_whole(list(traced.model.parameters()), limits), ranks)

    sent: Sent = Counter()
    sent[ALL_GATHER] = sent_bytes(ALL_GATHER, gathered_elements * weight_bytes, ranks)
    gradient_bytes = elements(traced.trained, ranks) * GRADIENT_BYTES
    sent[REDUCE_SCATTER] = layout.num_micro_batches * sent_bytes(REDUCE_SCATTER, gradient_bytes, ranks)
    copies: Sent = Counter()
    copies[ALL_GATHER] = sent_bytes(ALL_GATHER, copied_elements * weight_bytes, copy_ranks)
    return +sent, +copies
