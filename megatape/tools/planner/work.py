"""Operations of a GPU in a training step.

A model runs on the meta device. Every operator of PyTorch counts as a kernel of its own: attention and RMSNorm are one operator
each, as on a GPU, and so is each launch of our own kernels. Parts that torch.compile fuses are counted by fusion.py instead.
A kernel reads each input once and writes each output once.
"""

import torch

from megatape.accounting.extrapolation import changed, count_once, depths, extrapolate_all
from megatape.accounting.rank_model import build, on_shapes
from megatape.config import Config
from megatape.tools.planner.counting import count
from megatape.tools.planner.fusion import first_block_inputs, gained_by_fusion
from megatape.tools.planner.operations import Work


@count_once
def step_work(config: Config) -> Work:
    """Return the work of a forward and backward pass over a micro-batch on one rank, with the attention backend of a GPU.

    Documents count as one, and the optimizer is not included. Two depths are counted and extrapolated to all layers, which is
    exact.
    """
    work = eager_work(config).copy()
    if config.training.compile:
        work.update(gained_by_fusion(config))
    return work


def eager_work(config: Config) -> Work:
    """Return the work of `step_work` without torch.compile, with one operation per kernel that Python launches."""
    return _eager_work(changed(config, "training", compile=False))


@count_once
def _eager_work(config: Config) -> Work:
    """Return the work of `eager_work`. Configurations with and without torch.compile share its cache."""
    counts = {num_layers: _shallow_step(config, num_layers) for num_layers in depths(config.model)}
    return extrapolate_all(counts, config.model.num_layers)


def _shallow_step(config: Config, num_layers: int) -> Work:
    """Return the work of a step with this number of layers."""
    shape = (config.training.micro_batch_size, config.data.sequence_length)
    with on_shapes(config.training.precision):
        model = build(config, num_layers)
        tokens = torch.zeros(*shape, dtype=torch.long)
        with count() as work:
            loss = model(tokens, tokens, targets=tokens, dropout_seeds=tokens[:, 0])
            # A shallow model may lack the layers that are trained.
            if loss.requires_grad:
                loss.backward()
    return work


def attention_layer_work(config: Config) -> Work:
    """Return the work of attention and position update in the first block, without gradients.

    `megatape benchmark efficiency` times the same layer.
    """
    with on_shapes(config.training.precision), torch.no_grad():
        model = build(config, 2)
        block, x, positions = first_block_inputs(config, model)
        with count() as work:
            attended, attended_positions = block.attention(x, positions)
            if block.position is not None:
                block.position(positions, attended_positions, attended)
    return work
