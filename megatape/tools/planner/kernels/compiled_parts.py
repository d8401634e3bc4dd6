"""Parts of the model that torch.compile fuses, and how that changes the work of a step.

A compiled block is one graph, whose products, attention and kernels separate these parts. What PyTorch computes around
attention, such as a rotation without our kernels, counts as in an uncompiled block.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from megatape.accounting.shapes.extrapolation import scaled
from megatape.accounting.shapes.meta_device import in_precision, on_shapes
from megatape.accounting.shapes.rank_model import build_rank_model
from megatape.accounting.workload import Workload
from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.encodings.encoding import Encoding, EncodingModule, StateUpdate, positioned_layers
from megatape.model.block import Block, Streams
from megatape.model.transformer import Transformer
from megatape.registry import AUTO
from megatape.tools.planner.kernels.counting import count, run_backward
from megatape.tools.planner.kernels.fusion import compiled_work
from megatape.tools.planner.kernels.operations import Work
from megatape.utils.pytorch.torch_internals import FakeTensorMode


class CompiledPart(NamedTuple):
    """A compiled part of the blocks (model/build.py).

    Attributes:
        function: Function to compile.
        weights: Module with its weights.
        args: Its arguments.
        times: Number of blocks that run it.
    """

    function: Callable[..., Any]
    weights: nn.Module
    args: list[Any]
    times: int


def change_by_fusion(workload: Workload) -> Work:
    """Return how torch.compile changes the work of all blocks: compiled parts, minus the same parts uncompiled."""
    num_recomputations = int(workload.recomputes_blocks) + int(workload.chunk_tokens is not None)
    change: Work = Counter()
    compiled_parts = _compiled(replace(workload, attention=AUTO))
    with on_shapes(workload.precision):
        # The last compiled part is the position update, which is missing here if kernels update the position state.
        for part, (compiled_forward, compiled_backward) in zip(_compiled_parts(workload), compiled_parts, strict=False):
            with count() as eager_forward:
                part.function(*part.args)
            with count() as eager_pass:
                run_backward(part.function(*part.args), part.weights, part.args)
            change.update(scaled(compiled_forward, (1 + num_recomputations) * part.times))
            change.update(scaled(compiled_backward, part.times))
            change.update(scaled(eager_pass, -part.times))
            change.update(scaled(eager_forward, -num_recomputations * part.times))
    return change


@cache
def _compiled(workload: Workload) -> list[tuple[Work, Work]]:
    """Return the work of each compiled part, (forward, backward), which does not depend on the attention backend.

    The parts run on a CPU's shapes, because there RMSNorm consists of operators that can be fused.
    """
    with in_precision(workload.precision), FakeTensorMode():
        return [compiled_work(part.function, part.weights, part.args) for part in _compiled_parts(workload)]


def _compiled_parts(workload: Workload) -> list[CompiledPart]:
    """Return the compiled parts. The last block with the model's encoding, and all others, do not update the position state."""
    model = build_rank_model(workload.with_equal_layers(), 2)
    block, x, positions = first_block_inputs(workload, model)
    *_, last_block = model.blocks
    assert isinstance(last_block, Block)
    num_layers = workload.model.num_layers
    num_moving = len(positioned_layers(workload.model)) - 1
    position = block.position
    args = [x, torch.empty_like(x).requires_grad_()]

    norm = CompiledPart(block.attention_norm, block.attention_norm, [x], num_layers)
    if position is None:
        return [norm, CompiledPart(partial(_feed_forward, block), block, args, num_layers)]
    block.position = _KeptOutput()
    parts = [
        norm,
        CompiledPart(partial(_feed_forward, block), block, args, num_moving),
        CompiledPart(partial(_feed_forward, last_block), last_block, args, num_layers - num_moving),
    ]
    is_by_kernel = position.by_kernel and position.has_kernel(x.device)
    if not is_by_kernel:
        parts.append(_position_update(workload.model, model.encoding, position, x, positions, num_moving))
    return parts


class _KeptOutput(StateUpdate):
    """Update that returns the output of the MLP as the state, because the real update, a part of its own, reads it."""

    def forward(self, state: PositionState, attended_state: Tensor | None, m: Tensor) -> PositionState:
        return PositionState(None, m)


def _feed_forward(block: Block, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the content after a block, given the output of attention, and the MLP's output if the block updates the state."""
    # Call the block's own equation, because a wrapper around it would divide the tokens.
    after = Block.feed_forward(block, Streams(x, PositionState(None, None)), attended, None)
    return after.x, after.state.delta


def _position_update(
    config: ModelConfig,
    encoding: Encoding,
    position: EncodingModule,
    x: Tensor,
    positions: PositionState,
    times: int,
) -> CompiledPart:
    """Return the position update as a part. x: Content [batch, length, hidden size]."""
    leading = x.shape[:2]
    delta = x.new_empty(*leading, config.num_kv_heads, encoding.state_width, requires_grad=True)
    attended_positions = None
    if encoding.moves_state:
        attended_positions = x.new_empty(*leading, config.num_heads, encoding.state_width, requires_grad=True)

    def update(delta: Tensor, attended_positions: Tensor | None, m: Tensor) -> Tensor | None:
        return position(positions._replace(delta=delta), attended_positions, m).delta

    return CompiledPart(update, position, [delta, attended_positions, x], times)


def first_block_inputs(workload: Workload, model: Transformer) -> tuple[Block, Tensor, PositionState]:
    """Return the first block, with content of the shape that it gets and the initial position state."""
    batch = workload.micro_batch_size
    length = workload.sequence_length // workload.parallel.sample_replicas
    x = torch.empty(batch, length, workload.model.hidden_size, requires_grad=True)
    block = model.blocks[0]
    assert isinstance(block, Block)
    position_ids = torch.zeros(batch, length, dtype=torch.long)
    return block, x, PositionState(model.encoding.state(position_ids))
