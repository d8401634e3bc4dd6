"""Functions computing attention in a model's layers, in evaluation and in training."""

from functools import partial

from megatape.attention.attend import Attend, attend
from megatape.attention.backends.blocked import Blocked
from megatape.attention.shifted import ShiftedSparse, num_unshifted_heads
from megatape.config import ModelConfig
from megatape.model.options import ModelOptions


def dense_attention(options: ModelOptions) -> Attend:
    """Return attention to all earlier tokens: around the ring of context-parallel ranks, or else by the first backend."""
    context_axis = options.layout.context_axis
    if context_axis.size > 1:
        return Blocked(context_axis).attend
    kernels = options.kernels
    return partial(
        attend,
        backends=kernels.backends,
        rotation_by_kernel=kernels.rotation_by_kernel,
        deterministic=kernels.deterministic,
    )


def training_attention(config: ModelConfig, options: ModelOptions) -> Attend:
    """Return the attention of training: shifted sparse attention if training.num_shifted_groups is set, or else dense."""
    dense = dense_attention(options)
    num_groups = options.training.num_shifted_groups
    if num_groups is None:
        return dense
    layout = options.layout
    num_unshifted = num_unshifted_heads(config.num_kv_heads, layout.tensor_axis, layout.sequence_axis)
    return ShiftedSparse(num_groups, num_unshifted, dense)
