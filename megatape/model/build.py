"""Builds a model, and applies parallelism, kernels and memory savings to it, in this order.

1. Functions: attention, which passes keys around context-parallel ranks (attention/backends/blocked.py), shifted sparse
   attention, the matrix product, and kernels. `ModelOptions` has them and the layout.
2. Layers: tensor-parallel ranks shard each linear layer, embedding and loss (nn/linear.py). Their constructors take the axis.
3. Blocks: `block_class` wraps the equations of block.py for torch.compile, memory savings, tensor- and sequence-parallel ranks
   (compilation.py, memory.py, tensor_parallel.py, sequence_parallel.py).
4. The model: `Transformer` takes this rank's tokens of the samples (layout.py) and runs the blocks.
5. Freezing of parameters (trainable.py).

ZeRO comes afterwards, around the whole model (zero/engine.py). No step changes the equations of transformer.py and block.py or
a parameter's name. On one rank without options, only the last sum of blocks that update a position state is rebuilt.
"""

from functools import partial
from importlib.util import find_spec
from typing import TypeVar

from torch import nn

from megatape.attention.attend import Attend, attend
from megatape.attention.backends.blocked import Blocked
from megatape.attention.shifted import ShiftedSparse, num_unshifted_heads
from megatape.config import ModelConfig
from megatape.encodings import encoding_of
from megatape.model.block import MLP, Attention, Block
from megatape.model.compilation import CompiledBlock, prepare_compiler
from megatape.model.layout import SINGLE_RANK, Layout
from megatape.model.memory import ChunkedBlock, RebuiltSumBlock, RecomputedBlock, SelectiveBlock, SelectiveMLP
from megatape.model.options import DEFAULT_KERNELS, DEFAULT_TRAINING, Kernels, ModelOptions, TrainingOptions
from megatape.model.sequence_parallel import SequenceParallelAttention, SequenceParallelBlock
from megatape.model.tensor_parallel import TensorParallelAttention, TensorParallelMLP
from megatape.model.trainable import freeze
from megatape.model.transformer import Transformer
from megatape.nn.product import linear

Wrapped = TypeVar("Wrapped", bound=nn.Module)


def build_model(
    config: ModelConfig,
    layout: Layout = SINGLE_RANK,
    kernels: Kernels = DEFAULT_KERNELS,
    training: TrainingOptions = DEFAULT_TRAINING,
) -> Transformer:
    """Return a model whose weights are uninitialized.

    Args:
        config: Shape of the model, and its LoRA adapters.
        layout: Ranks that the model is distributed over.
        kernels: Kernels that compute it.
        training: Trainable parameters, loss, and memory savings.
    """
    if kernels.compiler is not None:
        prepare_compiler(kernels.compiler)
    dense = _dense_attention(layout, kernels)
    options = ModelOptions(
        layout=layout,
        attend=dense,
        attend_in_training=_sparse_attention(config, layout, training, dense),
        product=kernels.fp8 or linear,
        update_by_kernel=kernels.update_by_kernel and find_spec("triton") is not None,
        z_loss=training.z_loss,
        loss_by_kernel=kernels.loss_by_kernel,
        chunk_tokens=training.chunk_tokens,
        offload=training.activation_checkpointing == "offload",
        compiler=kernels.compiler or "inductor",
    )
    updates_state = encoding_of(config).carries_state
    model = Transformer(config, options, block_class(layout, kernels, training, updates_state))
    freeze(model, training.trainable, training.frozen)
    return model


def _dense_attention(layout: Layout, kernels: Kernels) -> Attend:
    if layout.context_axis.size > 1:
        return Blocked(layout.context_axis).attend
    return partial(attend, backends=kernels.backends, rotation_by_kernel=kernels.rotation_by_kernel)


def _sparse_attention(config: ModelConfig, layout: Layout, training: TrainingOptions, dense: Attend) -> Attend | None:
    """Return shifted sparse attention for training, or None to train with dense attention as well."""
    if training.num_shifted_groups is None:
        return None
    num_unshifted = num_unshifted_heads(config.num_kv_heads, layout.tensor_axis, layout.sequence_axis)
    return ShiftedSparse(training.num_shifted_groups, num_unshifted, dense)


def block_class(layout: Layout, kernels: Kernels, training: TrainingOptions, updates_state: bool) -> type[Block]:
    """Return the class of a model's blocks: the plain classes, wrapped by what is asked for, in the order of the lines below.

    A wrapper is a subclass that computes steps in another way. It adds no modules, so parameters keep their names.

    Args:
        layout: Ranks that the model is distributed over.
        kernels: Kernels of the model, which may include a compiler.
        training: Memory savings.
        updates_state: Whether blocks of the model update a position state.
    """
    blocks: list[type[Block]] = [Block]
    attentions: list[type[Attention]] = [Attention]
    mlps: list[type[MLP]] = [MLP]
    is_selective = kernels.compiler is None and training.activation_checkpointing == "selective"

    # Selective blocks pass a Remat of the input, also on one rank.
    if layout.tensor_axis.size > 1 or is_selective:
        attentions.append(TensorParallelAttention)
        mlps.append(TensorParallelMLP)
    if kernels.compiler is not None:
        blocks.append(CompiledBlock)
    elif is_selective:
        blocks.append(SelectiveBlock)
        mlps.append(SelectiveMLP)
    elif updates_state:
        blocks.append(RebuiltSumBlock)
    if training.chunk_tokens is not None:
        blocks.append(ChunkedBlock)
    if layout.sequence_axis.size > 1:
        attentions.append(SequenceParallelAttention)
        blocks.append(SequenceParallelBlock)
    if training.activation_checkpointing in ("full", "offload"):
        blocks.append(RecomputedBlock)

    block = _combined(blocks)
    attention = _combined(attentions)
    mlp = _combined(mlps)
    if (block, attention, mlp) == (Block, Attention, MLP):
        return Block
    return type("TrainedBlock", (block,), {"attention_class": attention, "mlp_class": mlp})


def _combined(wrappers: list[type[Wrapped]]) -> type[Wrapped]:
    """Return a class with all wrappers, given innermost first. The super() of each is the one before it."""
    if len(wrappers) == 1:
        return wrappers[0]
    name = f"Wrapped{wrappers[0].__name__}"
    return type(name, tuple(reversed(wrappers)), {})
