"""Blocks using less memory: autograd saves fewer tensors, or tensors are smaller. model/build.py combines these classes."""

from collections.abc import Callable
from contextlib import nullcontext

from torch import Tensor

from megatape.attention.rotation import PositionState
from megatape.model.block import Block, RematOf, Streams
from megatape.model.mlp import swiglu
from megatape.model.wrappers.tensor_parallel import TensorParallelMLP
from megatape.nn.norm import normalize, normalize_and_rebuild
from megatape.nn.remat.rebuilt import add_rebuilt, call_rebuilt
from megatape.nn.remat.recompute import in_chunks, keep_on_host, recompute
from megatape.nn.remat.remat import Remat


class RebuiltSumBlock(Block):
    """Block whose last sum the backward pass rebuilds from its two terms, if it updates the position state.

    The norm of the MLP saves one term and the position update the other, so the next block's norm need not save the sum.
    """

    def attend(self, streams: Streams, document_starts: Tensor | None) -> tuple[Tensor, Tensor | None]:
        h = normalize(self.attention_norm, streams.x, _remat_of_x(streams))
        return self.attention(h, streams.state, document_starts)

    def add(self, x: Tensor, m: Tensor) -> tuple[Tensor, RematOf | None]:
        if not self.updates_state:
            return super().add(x, m)
        total, sum_remat = add_rebuilt(x, m)
        if sum_remat is None:
            return total, None
        return total, sum_remat.matching


class SelectiveMLP(TensorParallelMLP):
    """MLP rebuilding silu(gate) * up in the backward pass."""

    def multiply(self, gate: Tensor, up: Tensor) -> Tensor:
        activation, activation_remat = call_rebuilt(swiglu, gate, up)
        return self.down(activation, remat=activation_remat)


class SelectiveBlock(RebuiltSumBlock):
    """Block saving the outputs of linear layers and attention, and rebuilding its norms and the MLP's silu(gate) * up.

    Its attention and MLP are those of tensor-parallel ranks, also on one rank, because they take a Remat of their input.
    """

    def attend(self, streams: Streams, document_starts: Tensor | None) -> tuple[Tensor, Tensor | None]:
        h, h_remat = normalize_and_rebuild(self.attention_norm, streams.x, _remat_of_x(streams))
        return self.attention(h, streams.state, document_starts, remat=h_remat)

    def apply_mlp(self, x: Tensor) -> Tensor:
        h, h_remat = normalize_and_rebuild(self.mlp_norm, x, None)
        return self.mlp(h, remat=h_remat)


def _remat_of_x(streams: Streams) -> Remat | None:
    """Return how the backward pass rebuilds the content before a block, or None if autograd saves it."""
    if streams.remat_of is None:
        return None
    return streams.remat_of(streams.x)


class ChunkedBlock(Block):
    """Block passing some tokens at a time through MLP and position update, which the backward pass recomputes."""

    def feed_forward(self, streams: Streams, attended: Tensor, attended_state: Tensor | None) -> Streams:
        chunk_tokens = self.options.training.chunk_tokens
        assert chunk_tokens is not None
        x, state, _ = streams
        if not self.updates_state:
            x, _ = in_chunks(self._feed_forward_chunk, chunk_tokens, x, attended, None, None, None)
            return Streams(x, state)
        initial, delta = state
        x, delta = in_chunks(self._feed_forward_chunk, chunk_tokens, x, attended, initial, delta, attended_state)
        return Streams(x, PositionState(initial, delta))

    def _feed_forward_chunk(
        self, x: Tensor, attended: Tensor, initial: Tensor | None, delta: Tensor | None, attended_state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return x and delta of some tokens after the block. Autograd saves arguments that are tensors, but not tuples."""
        after = super().feed_forward(Streams(x, PositionState(initial, delta)), attended, attended_state)
        return after.x, after.state.delta


class RecomputedBlock(Block):
    """Block saving only its input streams in training, in host memory with activation_checkpointing "offload".

    The backward pass repeats the call, including hooks.
    """

    def __call__(self, streams: Streams, document_starts: Tensor | None = None) -> Streams:
        call: Callable[..., Streams] = super().__call__
        if not self.training:
            return call(streams, document_starts)

        def run(x: Tensor, initial: Tensor | None, delta: Tensor | None, document_starts: Tensor | None) -> Streams:
            return call(Streams(x, PositionState(initial, delta)), document_starts)

        x, state, _ = streams
        is_offloaded = self.options.training.activation_checkpointing == "offload"
        saving = keep_on_host(x, state.delta) if is_offloaded else nullcontext()
        with saving:
            # Autograd saves arguments that are tensors, but not tensors inside tuples.
            after: Streams = recompute(run, x, *state, document_starts)
        return after
