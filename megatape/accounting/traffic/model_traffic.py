"""Bytes sent by the model's own collectives in a micro-batch, forward and backward."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

from megatape.accounting.shapes.extrapolation import depths, extrapolate_all
from megatape.accounting.shapes.rank_model import fake_axes
from megatape.accounting.shapes.trace import run_on_shapes
from megatape.accounting.workload import Workload
from megatape.distributed.traffic import Sent, TrafficCounter

# Key of the bytes overlapped with computation, which count once more, so that they are extrapolated like those of collectives.
OVERLAPPED = "overlapped"
# (axis, collective or OVERLAPPED) -> bytes.
SentByAxis = Counter[tuple[str, str]]


@dataclass(frozen=True)
class AxisTraffic:
    """Bytes that a rank sends along an axis in a micro-batch.

    Attributes:
        sent: Bytes by collective.
        overlapped: Bytes overlapped with computation, over all collectives.
    """

    sent: Sent
    overlapped: int


def model_traffic(workload: Workload, axis: str) -> AxisTraffic:
    """Return the bytes that a rank sends along an axis.

    Args:
        workload: The rank's model, batch and settings.
        axis: "tensor", "sequence" or "context".
    """
    sent: Sent = Counter()
    overlapped = 0
    for (name, collective), count in _sent_by_axis(workload).items():
        if name != axis:
            continue
        if collective == OVERLAPPED:
            overlapped = count
        else:
            sent[collective] = count
    return AxisTraffic(sent, overlapped)


@cache
def _sent_by_axis(workload: Workload) -> SentByAxis:
    """Return the bytes that the model's own collectives send, by axis.

    Bytes are an affine function of the sequence length, with coefficients affine in the depth, because all layers but the last
    are alike (in a pattern of different layers, all periods). So two shallow models on short sequences give the exact result,
    unless training.trainable or frozen treat layers differently.
    """
    samples = workload.micro_batch_size
    if workload.parallel.sample_ranks == 1:
        return Counter()
    if samples > 4 and samples % 2 == 0:
        # Samples are sent in halves, one of them overlapped. Gradients of gains are sent once.
        few = {number: _sent_by_axis(replace(workload, micro_batch_size=number)) for number in (2, 4)}
        return extrapolate_all(few, samples)
    by_depth = {num_layers: _sent_at_depth(workload, num_layers) for num_layers in depths(workload.model)}
    return extrapolate_all(by_depth, workload.model.num_layers)


def _sent_at_depth(workload: Workload, num_layers: int) -> SentByAxis:
    """Return the bytes of a model with `num_layers` layers, by axis."""
    axes = fake_axes(workload.parallel)
    short = 8 * workload.num_chunks * workload.parallel.sample_ranks
    by_length = {}
    for length in (short, 2 * short):
        with TrafficCounter(*axes.values()) as traffic:
            run_on_shapes(workload, num_layers, length)
        sent: SentByAxis = Counter()
        for name in axes:
            for collective, count in traffic.sent[name].items():
                sent[name, collective] = count
            sent[name, OVERLAPPED] = traffic.overlapped[name]
        by_length[length] = sent
    return extrapolate_all(by_length, workload.sequence_length)
