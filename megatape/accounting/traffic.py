"""Bytes that a rank sends in one optimizer step, by group of ranks and collective, and the bytes that leave its node.

The convention is that of distributed/traffic.py. Single numbers (norms, losses) do not count. tests/accounting compares with
real runs.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache

from torch import nn

from megatape.accounting.extrapolation import scaled
from megatape.accounting.matrices import plan_matrices
from megatape.accounting.model_traffic import OVERLAPPED, model_traffic
from megatape.accounting.trace import run_pass, run_weights
from megatape.accounting.zero3 import gathered
from megatape.config import Config
from megatape.distributed.traffic import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Sent, sent_bytes
from megatape.utils.units import format_bytes
from megatape.zero.deepspeed_config import Stage3Limits, stage3_limits

GRADIENT_BYTES = 4  # Gradients are summed over ranks in float32, whatever the precision.


@dataclass(frozen=True)
class Traffic:
    """Bytes that one rank sends in one optimizer step, by group of ranks.

    Groups are the axes that divide samples ("tensor", "sequence", "context"), the ranks that train the same weights ("data",
    for ZeRO), the ranks that share a second copy of the weights ("hpz"), and all ranks ("all", for an optimizer of whole
    matrices, averaged over ranks).

    Attributes:
        sent: Bytes by group and collective.
        overlapped: Share of the bytes that is overlapped with computation, by axis.
    """

    sent: dict[str, Sent]
    overlapped: dict[str, float]


@cache
def plan_traffic(config: Config, world_size: int) -> Traffic:
    """Plan the traffic of a rank.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks.
    """
    micro_batches = config.accumulation(world_size)
    replicas = config.replicas(world_size)
    sent = {axis: scaled(model_traffic(config, axis), micro_batches) for axis in config.parallel.axes}
    sent["tensor"].update(_replicated_gradients(config, replicas))
    overlapped = {}
    for axis, sent_by_axis in sent.items():
        overlapped_bytes = sent_by_axis.pop(OVERLAPPED, 0)
        overlapped[axis] = overlapped_bytes / max(1, sent_by_axis.total())

    if config.zero.stage == 3:
        sent["data"], sent["hpz"] = _stage3(config, replicas, micro_batches)
    else:
        sent["data"] = _stages_0_to_2(config, replicas, micro_batches)
        sent["hpz"] = Counter()
    matrix_bytes = plan_matrices(config, world_size).sent
    sent["all"] = +Counter({ALL_TO_ALL: matrix_bytes})
    return Traffic(sent, overlapped)


def _replicated_gradients(config: Config, replicas: int) -> Sent:
    """Return the bytes that a tensor-parallel rank sends to sum gradients of replicated weights, averaged over ranks."""
    tensor_size = config.parallel.tp
    weights = []
    for parameter in run_pass(config).model.parameters():
        is_replicated = not hasattr(parameter, "partition_dim")
        if parameter.requires_grad and is_replicated:
            weights.append(parameter)
    if tensor_size == 1 or not weights:
        return Counter()

    multiple = 1
    if config.zero.stage == 3:
        multiple = replicas
    summed = sent_bytes(ALL_REDUCE, elements(weights, multiple) * GRADIENT_BYTES, tensor_size)
    if config.zero.stage:
        # ZeRO has already divided the gradients over the replicas.
        summed //= replicas
    return Counter({ALL_REDUCE: summed})


def _stages_0_to_2(config: Config, ranks: int, micro_batches: int) -> Sent:
    """Return the bytes that ZeRO sends at the stages 0 to 2.

    Args:
        config: Configuration of the run.
        ranks: Number of ranks that train the same weights.
        micro_batches: Number of micro-batches in a step.
    """
    one = run_weights(config)
    trainable = [parameter for parameter in one.model.parameters() if parameter.requires_grad]
    sent: Sent = Counter()
    if config.zero.stage == 0:
        # Trainable parameters without a gradient are reduced too, as zeros.
        sent[ALL_REDUCE] = sent_bytes(ALL_REDUCE, elements(trainable) * GRADIENT_BYTES, ranks)
        return +sent
    reductions = 1
    if config.zero.stage == 2:
        reductions = micro_batches
    sent[ALL_REDUCE] = reductions * sent_bytes(ALL_REDUCE, elements(one.trained) * GRADIENT_BYTES, ranks)
    sent[ALL_GATHER] = sent_bytes(ALL_GATHER, elements(trainable) * element_bytes(config.training.precision), ranks)
    return +sent


def _stage3(config: Config, ranks: int, micro_batches: int) -> tuple[Sent, Sent]:
    """Return the bytes that ZeRO sends at stage 3, and those between ranks that share a second copy of the weights.

    Args:
        config: Configuration of the run.
        ranks: Number of ranks that train the same weights.
        micro_batches: Number of micro-batches in a step.
    """
    one = run_pass(config)
    limits = stage3_limits(config.model, config.zero, config.parallel.tp)
    weight_bytes = element_bytes(config.training.precision)
    gathered_elements = micro_batches * gathered(one.events, ranks, limits).elements
    copied_elements = 0  # gathered from the second copy
    if config.zero.hpz_ranks > 1:
        divided = elements(one.trained, ranks) - elements(always_whole(one.trained, limits), ranks)
        copied_elements = gathered_elements - divided
        gathered_elements = divided
    # Gathered after the optimizer has changed them.
    gathered_elements += elements(always_whole(list(one.model.parameters()), limits), ranks)

    sent: Sent = Counter()
    sent[ALL_GATHER] = sent_bytes(ALL_GATHER, gathered_elements * weight_bytes, ranks)
    gradient_bytes = elements(one.trained, ranks) * GRADIENT_BYTES
    sent[REDUCE_SCATTER] = micro_batches * sent_bytes(REDUCE_SCATTER, gradient_bytes, ranks)
    copies: Sent = Counter()
    copies[ALL_GATHER] = sent_bytes(ALL_GATHER, copied_elements * weight_bytes, config.zero.hpz_ranks)
    return +sent, +copies


def always_whole(parameters: list[nn.Parameter], limits: Stage3Limits) -> list[nn.Parameter]:
    """Return the parameters below DeepSpeed's persistence threshold, which stage 3 keeps gathered on every rank."""
    return [parameter for parameter in parameters if parameter.numel() <= limits.persistence_threshold]


def element_bytes(precision: str) -> int:
    """Return the bytes of one weight or activation in compute, in a precision such as "bfloat16"."""
    if precision == "bfloat16":
        return 2
    return 4


def elements(parameters: list[nn.Parameter], multiple: int = 1) -> int:
    """Return the number of elements of parameters, each padded to a multiple."""
    return sum(-(-parameter.numel() // multiple) * multiple for parameter in parameters)


def spanning_warning(config: Config, world_size: int, ranks_per_node: int) -> str:
    """Return a warning about sequence-parallel ranks on several nodes, or "" if each node has all ranks of a sample.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks.
        ranks_per_node: Number of ranks on each node.
    """
    parallel = config.parallel
    per_node = max(1, ranks_per_node // parallel.tp)
    if parallel.sp <= per_node:
        return ""
    sent = model_traffic(config, "sequence")
    outside = leaving_node(sent, parallel.sp, per_node) * config.accumulation(world_size)
    return (
        f"the {parallel.tp * parallel.sp} ranks of a sample (parallel.tp {parallel.tp} x parallel.sp {parallel.sp}) are on "
        f"nodes of {ranks_per_node}: around attention each sends {format_bytes(outside)} a step to other nodes, and waits for "
        "it; choose a parallel.sp that fits a node if its memory holds the sample, and parallel.cp for the rest"
    )


def leaving_node(sent: Sent, group_size: int, members_per_node: int) -> float:
    """Return the bytes that leave the node, averaged over the ranks of the group.

    Around a ring, one in `members_per_node` ranks sends to the next node. An all-to-all sends the same to every rank.

    Args:
        sent: Bytes that a rank sends, by collective.
        group_size: Number of ranks in the group.
        members_per_node: Number of ranks of the group on each node.
    """
    if group_size <= members_per_node:
        return 0.0
    total = 0.0
    for collective, count in sent.items():
        share = 1 / members_per_node
        if collective == ALL_TO_ALL:
            share = (group_size - members_per_node) / (group_size - 1)
        total += count * share
    return total
