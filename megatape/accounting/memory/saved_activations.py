"""Bytes of activations that autograd saves for a micro-batch, counted by running shallow models without data."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from megatape.accounting.memory.saved_tensors import saved_bytes
from megatape.accounting.shapes.extrapolation import depths, extrapolate
from megatape.accounting.shapes.meta_device import in_precision
from megatape.accounting.shapes.rank_model import build_rank_model
from megatape.accounting.workload import Workload
from megatape.utils.pytorch.torch_internals import FakeTensorMode, fused_on_shapes


@dataclass(frozen=True)
class SavedActivations:
    """Bytes that autograd saves on one rank for a micro-batch.

    Attributes:
        total: Bytes for the whole model.
        layer: Bytes for each layer but the last, or in a pattern of different layers for each period.
    """

    total: int
    layer: int


@cache
def count_saved_activations(workload: Workload, on_gpu: bool) -> SavedActivations:
    """Count the bytes of activations saved for the backward pass.

    They are counted at two depths, on small micro-batches and, for a GPU, on short samples. Extrapolating from these is exact:
    on a GPU, nothing with N x N elements is saved.

    Args:
        workload: The rank's model, batch and settings.
        on_gpu: Whether to use the attention backend of a GPU instead of a CPU.
    """
    samples = workload.micro_batch_size
    if samples > 2:
        one = count_saved_activations(replace(workload, micro_batch_size=1), on_gpu)
        two = count_saved_activations(replace(workload, micro_batch_size=2), on_gpu)
        total = extrapolate({1: one.total, 2: two.total}, samples)
        layer = extrapolate({1: one.layer, 2: two.layer}, samples)
        return SavedActivations(total, layer)

    first, second = depths(workload.model)
    by_depth = {
        first: _saved_at_depth(workload, first, on_gpu),
        second: _saved_at_depth(workload, second, on_gpu),
    }
    total = extrapolate(by_depth, workload.model.num_layers)
    return SavedActivations(total, layer=by_depth[second] - by_depth[first])


def _saved_at_depth(workload: Workload, num_layers: int, on_gpu: bool) -> int:
    """Return the bytes at one depth, on samples of the run's length."""
    if not on_gpu:
        return _saved(workload, num_layers, on_gpu)
    unit = 64 * workload.parallel.sample_ranks * (workload.num_shifted_groups or 1)
    # Longer than the windows: a window of all tokens would take the backend of full attention.
    longest_window = max(window or 0 for window in workload.model.pattern.windows)
    short = unit * (1 + longest_window // unit)
    by_length = {}
    for length in (short, 2 * short):
        by_length[length] = _saved(replace(workload, sequence_length=length), num_layers, on_gpu)
    return extrapolate(by_length, workload.sequence_length)


def _saved(workload: Workload, num_layers: int, on_gpu: bool) -> int:
    device: AbstractContextManager[Any] = torch.device("meta") if on_gpu else FakeTensorMode()
    with fused_on_shapes(), in_precision(workload.precision), device:
        share = build_rank_model(workload, num_layers)
        return saved_bytes(share, workload.micro_batch_size, workload.sequence_length, workload.mask_documents)
