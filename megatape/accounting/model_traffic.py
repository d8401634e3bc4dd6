"""Bytes that the model's own collectives send in the forward and backward pass of a micro-batch."""

from collections import Counter
from dataclasses import replace
from functools import cache

from megatape.accounting.extrapolation import depths, extrapolate_all
from megatape.accounting.rank_model import fake_axes
from megatape.accounting.trace import run_model
from megatape.accounting.workload import Workload
from megatape.distributed.traffic import CountTraffic, Sent

OVERLAPPED = "overlapped"  # key of the bytes, of all collectives, that are overlapped with computation

SentByAxis = Counter[tuple[str, str]]  # bytes by (axis, collective)


def model_traffic(workload: Workload, axis: str) -> Sent:
    """Return the bytes that a rank sends to the ranks of an axis, by collective. OVERLAPPED has the overlapped part.

    Args:
        workload: Computation of the rank.
        axis: "tensor", "sequence" or "context".
    """
    sent: Sent = Counter()
    for (name, collective), count in _sent_by_axis(workload).items():
        if name == axis:
            sent[collective] = count
    return sent


@cache
def _sent_by_axis(workload: Workload) -> SentByAxis:
    """Count the bytes of all axes.

    Bytes are an affine function of the sequence length, and each coefficient is an affine function of the depth, because all
    layers but the last are alike, or with model.nope_every all periods. So two shallow models on short sequences determine
    them, and the result is exact (unless training.trainable or frozen treat layers differently).
    """
    samples = workload.micro_batch_size
    if workload.parallel.sample_ranks == 1:
        return Counter()
    if samples > 4 and samples % 2 == 0:
        # Samples are sent in halves, one of which is overlapped. Gradients of gains are sent once.
        few = {number: _sent_by_axis(replace(workload, micro_batch_size=number)) for number in (2, 4)}
        return extrapolate_all(few, samples)
    by_depth = {num_layers: _sent_at_depth(workload, num_layers) for num_layers in depths(workload.model)}
    return extrapolate_all(by_depth, workload.model.num_layers)


def _sent_at_depth(workload: Workload, num_layers: int) -> SentByAxis:
    """Count the bytes of a model with this number of layers."""
    axes = fake_axes(workload.parallel)
    short = 8 * workload.num_chunks * workload.parallel.sample_ranks
    by_length = {}
    for length in (short, 2 * short):
        with CountTraffic(*axes.values()) as traffic:
            run_model(workload, num_layers, length)
        sent: SentByAxis = Counter()
        for name in axes:
            for collective, count in traffic.sent[name].items():
                sent[name, collective] = count
            sent[name, OVERLAPPED] = traffic.overlapped[name]
        by_length[length] = sent
    return extrapolate_all(by_length, workload.sequence_length)
