"""Activations that autograd saves in the forward pass of a run's micro-batch."""

from typing import NamedTuple

import torch

from megatape.accounting.extrapolation import changed, count_once, depths, extrapolate
from megatape.accounting.rank_model import build, in_precision
from megatape.accounting.saved_tensors import saved_bytes
from megatape.config import Config
from megatape.utils.torch_internals import FakeTensorMode, fused_on_shapes


class Activations(NamedTuple):
    """Bytes that autograd saves on one rank for the backward pass of a micro-batch.

    Attributes:
        total: Bytes of the whole model.
        layer: Bytes of each layer but the last, or with model.nope_every of each period.
    """

    total: int
    layer: int


@count_once
def activations(config: Config, on_gpu: bool) -> Activations:
    """Return the bytes of activations saved for the backward pass.

    Two depths are counted and extrapolated to all layers, which is exact. So are the extrapolations from small micro-batches,
    and on a GPU from short samples, because nothing of N x N elements is saved there.

    Args:
        config: Configuration of the run.
        on_gpu: Whether to use the attention backend of a GPU, or that of a CPU.
    """
    samples = config.training.micro_batch_size
    if samples > 2:
        one = activations(changed(config, "training", micro_batch_size=1), on_gpu)
        two = activations(changed(config, "training", micro_batch_size=2), on_gpu)
        total = extrapolate({1: one.total, 2: two.total}, samples)
        layer = extrapolate({1: one.layer, 2: two.layer}, samples)
        return Activations(total, layer)

    first, second = depths(config.model)
    by_depth = {
        first: _saved_at_depth(config, first, on_gpu),
        second: _saved_at_depth(config, second, on_gpu),
    }
    total = extrapolate(by_depth, config.model.num_layers)
    return Activations(total, layer=by_depth[second] - by_depth[first])


def _saved_at_depth(config: Config, num_layers: int, on_gpu: bool) -> int:
    """Return the bytes of a model with this number of layers, on samples of the run's length."""
    length = config.data.sequence_length
    if not on_gpu:
        return _saved(config, num_layers, length, on_gpu)
    short = 64 * config.parallel.sample_ranks * (config.training.num_shifted_groups or 1)
    by_length = {
        short: _saved(config, num_layers, short, on_gpu),
        2 * short: _saved(config, num_layers, 2 * short, on_gpu),
    }
    return extrapolate(by_length, length)


def _saved(config: Config, num_layers: int, length: int, on_gpu: bool) -> int:
    """Return the bytes of a model with this number of layers, on samples of this length."""
    device = torch.device("meta") if on_gpu else FakeTensorMode()
    with fused_on_shapes(), in_precision(config.training.precision), device:
        share = build(config, num_layers)
        return saved_bytes(share, config.training.micro_batch_size, length, config.data.mask_documents)
