"""Bytes that a rank sends in one optimizer step, by group of ranks and collective, and how many of them leave the node.

The convention is that of distributed/traffic.py. Single numbers (norms, losses) are left out.
tests/plan compares with real runs.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache

from torch import nn

from megatape.accounting.matrices import plan_matrices
from megatape.accounting.trace import OVERLAPPED, model_traffic, run_pass, run_weights, scaled
from megatape.accounting.zero3 import gathered
from megatape.config import Config
from megatape.distributed.traffic import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Sent, sent_bytes
from megatape.utils.units import format_bytes
from megatape.zero.deepspeed_config import stage3_limits

GRADIENT_BYTES = 4  # gradients are summed over ranks in float32 whatever the precision


@dataclass(frozen=True)
class Traffic:
    """Bytes that one rank sends in one optimizer step, by group.

    Attributes:
        sent: to the ranks of the axes that divide samples ("tensor", "sequence", "context"); by ZeRO to all that train the same
            weights ("data"), and to those with which it has a second copy of them ("hpz"); and, of an optimizer of whole
            matrices, to all ranks ("all"), on average over ranks.
        overlapped: by axis, the share of its bytes that is overlapped with computation.
    """

    sent: dict[str, Sent]
    overlapped: dict[str, float]


@cache
def plan_traffic(config: Config, world_size: int) -> Traffic:
    """The traffic of a rank."""
    micro_batches = config.accumulation(world_size)
    sent = {axis: scaled(model_traffic(config, axis), micro_batches) for axis in config.parallel.axes}
    sent["tensor"].update(_replicated(config, config.replicas(world_size)))
    overlapped = {axis: of_axis.pop(OVERLAPPED, 0) / max(1, of_axis.total()) for axis, of_axis in sent.items()}
    sent["data"], sent["hpz"] = _data(config, config.replicas(world_size), micro_batches)
    matrices = plan_matrices(config, world_size).sent
    sent["all"] = Counter({ALL_TO_ALL: matrices} if matrices else {})
    return Traffic(sent, overlapped)


def _replicated(config: Config, replicas: int) -> Sent:
    """Return the bytes that a tensor-parallel rank sends to sum gradients of replicated weights, averaged over ranks."""
    tensor_size = config.parallel.tp
    weights = [
        parameter
        for parameter in run_pass(config).model.parameters()
        if parameter.requires_grad and not hasattr(parameter, "partition_dim")
    ]
    if tensor_size == 1 or not weights:
        return Counter()
    divided = 1 if config.zero.stage == 0 else replicas  # ZeRO has already divided the gradients over the replicas
    multiple = replicas if config.zero.stage == 3 else 1
    whole = sent_bytes(ALL_REDUCE, elements(weights, multiple) * GRADIENT_BYTES, tensor_size)
    return Counter({ALL_REDUCE: whole // divided})


def _data(config: Config, ranks: int, micro_batches: int) -> tuple[Sent, Sent]:
    stage = config.zero.stage
    weight_bytes = element_bytes(config)
    one = run_pass(config) if stage == 3 else run_weights(config)
    parameters = list(one.model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    sent: Sent = Counter()
    again = 0  # elements gathered from the second copy
    if stage == 0:
        # Trained parameters without a gradient are reduced too, as zeros.
        sent[ALL_REDUCE] = sent_bytes(ALL_REDUCE, elements(trained) * GRADIENT_BYTES, ranks)
    elif stage < 3:
        reductions = micro_batches if stage == 2 else 1
        sent[ALL_REDUCE] = reductions * sent_bytes(ALL_REDUCE, elements(one.trained) * GRADIENT_BYTES, ranks)
        sent[ALL_GATHER] = sent_bytes(ALL_GATHER, elements(trained) * weight_bytes, ranks)
    else:
        moved = micro_batches * gathered(one.events, ranks, stage3_limits(config)).elements
        if config.zero.hpz_ranks > 1:
            first = elements(one.trained, ranks) - elements(always_whole(one.trained, config), ranks)
            moved, again = first, moved - first
        moved += elements(always_whole(parameters, config), ranks)  # gathered after the optimizer has changed them
        sent[ALL_GATHER] = sent_bytes(ALL_GATHER, moved * weight_bytes, ranks)
        sent[REDUCE_SCATTER] = micro_batches * sent_bytes(REDUCE_SCATTER, elements(one.trained, ranks) * GRADIENT_BYTES, ranks)
    copies = Counter({ALL_GATHER: sent_bytes(ALL_GATHER, again * weight_bytes, config.zero.hpz_ranks)})
    return +sent, +copies


def always_whole(parameters: list[nn.Parameter], config: Config) -> list[nn.Parameter]:
    """Those that stage 3 keeps whole on every rank."""
    largest = stage3_limits(config).persistence_threshold
    return [parameter for parameter in parameters if parameter.numel() <= largest]


def element_bytes(config: Config) -> int:
    """Bytes of one weight or activation in compute."""
    return 2 if config.training.precision == "bfloat16" else 4


def elements(parameters: list[nn.Parameter], multiple: int = 1) -> int:
    """The number of elements of all of them, each padded to a multiple."""
    return sum(-(-parameter.numel() // multiple) * multiple for parameter in parameters)


def spanning_warning(config: Config, world_size: int, ranks_per_node: int) -> str:
    """What sequence-parallel ranks on several nodes cost; "" where each node has all of a sample."""
    parallel = config.parallel
    per_node = max(1, ranks_per_node // config.parallel.tp)
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
    """Bytes of `sent` that leave the node, on average over the ranks of the group.

    Around a ring, one in `members_per_node` ranks sends to the next node. An all-to-all sends the same to every rank.
    """
    if group_size <= members_per_node:
        return 0.0
    outside = (group_size - members_per_node) / (group_size - 1)
    return sum(count * (outside if collective == ALL_TO_ALL else 1 / members_per_node) for collective, count in sent.items())
