"""Bytes that the model's own collectives send in the forward and backward pass of a micro-batch."""

from collections import Counter

from megatape.accounting.extrapolation import changed, count_once, depths, extrapolate_all
from megatape.accounting.rank_model import axes_of, num_chunks
from megatape.accounting.trace import run_model
from megatape.config import Config
from megatape.distributed.traffic import CountTraffic, Sent

OVERLAPPED = "overlapped"  # key of the bytes, of all collectives, that are overlapped with computation

SentByAxis = Counter[tuple[str, str]]  # bytes by (axis, collective)


def model_traffic(config: Config, axis: str) -> Sent:
    """Return the bytes that a rank sends to the ranks of an axis, by collective. OVERLAPPED has the overlapped part.

    Args:
        config: Configuration of the run.
        axis: "tensor", "sequence" or "context".
    """
    sent: Sent = Counter()
    for (name, collective), count in _sent_by_axis(config).items():
        if name == axis:
            sent[collective] = count
    return sent


@count_once
def _sent_by_axis(config: Config) -> SentByAxis:
    """Count the bytes of all axes.

    Bytes are an affine function of the sequence length, and each coefficient is an affine function of the depth, because all
    layers but the last are alike, or with model.nope_every all periods. So two shallow models on short sequences determine
    them, and the result is exact (unless training.trainable or frozen treat layers differently).
    """
    samples = config.training.micro_batch_size
    if config.parallel.sample_ranks == 1:
        return Counter()
    if samples > 4 and samples % 2 == 0:
        # Samples are sent in halves, one of which is overlapped. Gradients of gains are sent once.
        few = {number: _sent_by_axis(changed(config, "training", micro_batch_size=number)) for number in (2, 4)}
        return extrapolate_all(few, samples)
    by_depth = {num_layers: _sent_at_depth(config, num_layers) for num_layers in depths(config.model)}
    return extrapolate_all(by_depth, config.model.num_layers)


def _sent_at_depth(config: Config, num_layers: int) -> SentByAxis:
    """Count the bytes of a model with this number of layers."""
    axes = axes_of(config.parallel)
    short = 8 * num_chunks(config) * config.parallel.sample_ranks
    by_length = {}
    for length in (short, 2 * short):
        with CountTraffic(*axes.values()) as traffic:
            run_model(config, num_layers, length)
        sent: SentByAxis = Counter()
        for name in axes:
            for collective, count in traffic.sent[name].items():
                sent[name, collective] = count
            sent[name, OVERLAPPED] = traffic.overlapped[name]
        by_length[length] = sent
    return extrapolate_all(by_length, config.data.sequence_length)
