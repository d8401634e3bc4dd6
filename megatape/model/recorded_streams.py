"""Residual streams after every block of a forward pass, for views of positions and for tests.

Shapes as in model/transformer.py.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from megatape.attention.rotation import PositionState
from megatape.distributed.layout import local_tokens
from megatape.model.block import Streams
from megatape.model.transformer import Transformer


@contextmanager
def recorded_streams(model: Transformer) -> Iterator[list[tuple[Tensor, Tensor | None]]]:
    """Yield a list that receives (x, e) of this rank's tokens after every block of a forward pass.

    While recording, the last block with positions updates e as well. Otherwise it skips that update, because nothing reads it.
    """
    found: list[tuple[Tensor, Tensor | None]] = []

    def record(block: nn.Module, inputs: tuple[object, ...], streams: Streams) -> None:
        found.append((streams.x, local_state(model, streams.state)))

    with ExitStack() as stack:
        for block in model.blocks:
            stack.enter_context(block.register_forward_hook(record))
        stack.enter_context(model.last_positioned_block.reading_state())
        yield found


def local_state(model: Transformer, state: PositionState) -> Tensor | None:
    """Return the state of this rank's tokens, [B, N/S/T, L, W] if blocks move it; that of all tokens otherwise."""
    if state.initial is None or not model.encoding.carries_state:
        return state.initial
    of_sequence_rank = local_tokens(state.initial, model.layout.sequence_axis)
    initial = local_tokens(of_sequence_rank, model.tensor_axis)
    return state._replace(initial=initial).tensor(model.config.num_kv_heads)
