"""GPU operations of a training step, counted by running the model on the meta device.

Every PyTorch operator counts as one kernel, which reads each input once and writes each output once. As on a GPU, attention and
RMSNorm are one operator each, and so is each launch of our own kernels. compiled_parts.py counts what torch.compile fuses.
"""

from dataclasses import replace
from functools import cache

import torch

from megatape.accounting.shapes.extrapolation import depths, extrapolate_all
from megatape.accounting.shapes.meta_device import on_shapes
from megatape.accounting.shapes.rank_model import build_rank_model
from megatape.accounting.workload import Workload
from megatape.tools.planner.kernels.compiled_parts import change_by_fusion, first_block_inputs
from megatape.tools.planner.kernels.counting import count
from megatape.tools.planner.kernels.operations import Work


@cache
def step_work(workload: Workload) -> Work:
    """Return the work of one rank's forward and backward pass over a micro-batch, with a GPU's attention backend.

    Samples count as one document, and the optimizer is not included. Extrapolating from two depths to all layers is exact.
    """
    work = eager_work(workload).copy()
    if workload.compile:
        work.update(change_by_fusion(workload))
    return work


def eager_work(workload: Workload) -> Work:
    """Return the same work as `step_work` without torch.compile: one operation per kernel that Python launches."""
    return _eager_work(replace(workload, compile=False))


@cache
def _eager_work(workload: Workload) -> Work:
    """Compute `eager_work`, with one cache for workloads with and without torch.compile."""
    counts = {num_layers: _shallow_step(workload, num_layers) for num_layers in depths(workload.model)}
    return extrapolate_all(counts, workload.model.num_layers)


def _shallow_step(workload: Workload, num_layers: int) -> Work:
    shape = (workload.micro_batch_size, workload.sequence_length)
    with on_shapes(workload.precision):
        model = build_rank_model(workload, num_layers)
        tokens = torch.zeros(*shape, dtype=torch.long)
        with count() as work:
            loss = model(tokens, tokens, targets=tokens, dropout_seeds=tokens[:, 0])
            # A shallow model may lack the layers that are trained.
            if loss.requires_grad:
                loss.backward()
    return work


def attention_layer_work(workload: Workload) -> Work:
    """Return the work of attention and position update in the first block, without gradients.

    `megatape benchmark efficiency` times the same layer.
    """
    with on_shapes(workload.precision), torch.no_grad():
        model = build_rank_model(workload, 2)
        block, x, positions = first_block_inputs(workload, model)
        with count() as work:
            attended, attended_positions = block.attention(x, positions)
            if block.position is not None:
                block.position(positions, attended_positions, attended)
    return work
