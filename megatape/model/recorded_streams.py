"""Records the residual streams of a forward pass, for position views and tests. Shapes as in model/transformer.py."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from megatape.attention.rotation import PositionState
from megatape.distributed.layout import local_tokens
from megatape.model.block import Streams
from megatape.model.transformer import Transformer


@contextmanager
def recorded_streams(model: Transformer) -> Iterator[list[tuple[Tensor, Tensor | None]]]:
    """Yield a list to which a forward pass appends (x, e) of this rank's tokens after each block.

    While recording, the last block with positions updates e as well. Otherwise it skips the update, because nothing reads it.
    """
    recorded: list[tuple[Tensor, Tensor | None]] = []

    def record(block: nn.Module, inputs: tuple[object, ...], streams: Streams) -> None:
        recorded.append((streams.x, local_state(model, streams.state)))

    with ExitStack() as stack:
        for block in model.blocks:
            stack.enter_context(block.register_forward_hook(record))
        stack.enter_context(model.last_positioned_block.reading_state())
        yield recorded


def local_state(model: Transformer, state: PositionState) -> Tensor | None:
    """Return the state of this rank's tokens, [B, N/T, L, W]. If blocks do not update it, return that of all tokens."""
    if state.initial is None or not model.encoding.carries_state:
        return state.initial
    initial = local_tokens(state.initial, model.layout.sequence_axis)
    initial = local_tokens(initial, model.layout.tensor_axis)
    return state._replace(initial=initial).tensor(model.config.num_kv_heads)
