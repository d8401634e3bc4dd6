"""Activation bytes at the peak of a micro-batch: saved for the backward pass, offloaded, and temporary."""

from dataclasses import dataclass, replace
from functools import cache

from megatape.accounting.memory.saved_activations import count_saved_activations
from megatape.accounting.shapes.rank_model import requirements_on_gpu
from megatape.accounting.workload import Workload
from megatape.attention.attend import check_forced_backend
from megatape.nn.loss import chunk_logits
from megatape.utils.values.rounding import divide_up

FLOAT32_BYTES = 4
# Bytes per number while torchao rounds to FP8: scaled and clamped in float32, then rounded.
FP8_BYTES = FLOAT32_BYTES + FLOAT32_BYTES + 1


@dataclass(frozen=True)
class ActivationMemory:
    """Device bytes for a micro-batch, in addition to weights, gradients and optimizer.

    Attributes:
        content: Saved activations, without positions.
        positions: Further saved activations, due to the position encoding.
        temporary: Peak of temporary tensors in the backward pass and the loss.
    """

    content: int
    positions: int
    temporary: int

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return self.content + self.positions + self.temporary


@cache
def plan_activations(workload: Workload, on_gpu: bool) -> ActivationMemory:
    """Return a micro-batch's activation bytes by part.

    Args:
        workload: The rank's model, batch and settings.
        on_gpu: Whether to plan for a GPU's attention backend.

    Raises:
        UserError: The backend that training.attention forces cannot run on a GPU.
    """
    if on_gpu:
        check_forced_backend(requirements_on_gpu(workload), workload.attention, workload.model.encoding)
    without_positions = workload.without_positions()
    total = count_saved_activations(workload, on_gpu).total
    content = count_saved_activations(without_positions, on_gpu).total
    return ActivationMemory(content, total - content, largest_temporary(workload, on_gpu))


def largest_temporary(workload: Workload, on_gpu: bool) -> int:
    """Return the peak of temporary bytes, in a layer's backward pass or in the loss."""
    backward = recomputed_bytes(workload, on_gpu) + _rounding_bytes(workload)
    return max(backward, _loss_bytes(workload, on_gpu))


def offloaded_bytes(workload: Workload, on_gpu: bool) -> int:
    """Return the bytes of streams that wait in host memory for the backward pass.

    This includes tensors that all blocks share and keep on the device (first angles, document starts), which are smaller than
    one block's stream.
    """
    on_device = replace(workload, activation_checkpointing="full")
    return count_saved_activations(on_device, on_gpu).total - count_saved_activations(workload, on_gpu).total


def recomputed_bytes(workload: Workload, on_gpu: bool) -> int:
    """Return the bytes that the backward pass recomputes at a time: one chunk of a layer, or of its parts not saved."""
    # Let all layers have the model's encoding, because the largest layer has it.
    workload = workload.with_equal_layers()
    plain = replace(workload, activation_checkpointing="none")
    # A layer's backward pass has all tensors outside of chunks, and those of one chunk at a time.
    outside_chunks = count_saved_activations(plain, on_gpu).layer
    whole_layer = count_saved_activations(replace(plain, chunk_tokens=None), on_gpu).layer
    chunk = (whole_layer - outside_chunks) // workload.num_chunks
    already_saved = 0
    if not workload.recomputes_blocks:
        already_saved = count_saved_activations(workload, on_gpu).layer
    return outside_chunks - already_saved + chunk


def _rounding_bytes(workload: Workload) -> int:
    """Return the bytes that torchao needs while rounding a matrix to FP8, 0 if that is compiled."""
    if workload.fp8 == "none" or workload.compile:
        return 0
    model = workload.model
    largest_width = max(model.hidden_size, model.num_heads * model.head_dim, model.mlp_size)
    return FP8_BYTES * largest_width * max(workload.replica_tokens, model.hidden_size)


def _loss_bytes(workload: Workload, on_gpu: bool) -> int:
    """Return the bytes of one chunk's logits and of the output matrix's gradient (nn/loss.py).

    On a GPU, a kernel overwrites the logits with their gradient.
    """
    model = workload.model
    size = workload.element_bytes
    vocabulary_share = divide_up(model.vocab_size, workload.parallel.tp)
    chunk_tokens = min(workload.replica_tokens, max(1, chunk_logits(on_gpu) // vocabulary_share))

    bytes_per_logit = size
    if not on_gpu:
        if size != FLOAT32_BYTES:
            # A CPU also keeps the logits in float32, and their gradient.
            bytes_per_logit += FLOAT32_BYTES + size
        if model.logit_softcap is not None:
            # Logits before the soft-cap, and the slopes of the soft-cap.
            bytes_per_logit += 2 * FLOAT32_BYTES
    logits = chunk_tokens * vocabulary_share
    output_matrix = vocabulary_share * model.hidden_size
    return logits * bytes_per_logit + output_matrix * (FLOAT32_BYTES + size)
