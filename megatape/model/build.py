"""Builds a model, and applies parallelism, kernels and memory savings to it, in this order.

1. Functions: attention, dense or shifted, also around a ring of context-parallel ranks (attention_functions.py), the linear
   function (plain or FP8), and kernels. Layers read them from `ModelOptions`.
2. Layers: tensor-parallel ranks shard each linear layer, embedding and loss (nn/linear.py). Their constructors take the axis.
3. Blocks: `block_class` wraps the equations of block.py for torch.compile, memory savings, tensor- and sequence-parallel ranks,
   and ZeRO stage 3 (wrappers/).
4. The model: `Transformer` takes this rank's tokens of the samples (layout.py) and runs the blocks.
5. Freezing of parameters (trainable.py).

ZeRO comes afterwards, around the whole model (zero/engine.py). No step changes the equations of transformer.py and block.py or
a parameter's name. On one rank without options, only the last sum of blocks that update a position state is rebuilt.
"""

from typing import TypeVar

import torch
from torch import nn

from megatape.config import ActivationCheckpointing, ModelConfig
from megatape.config.sections.training import recomputes_blocks
from megatape.encodings import encoding_of
from megatape.model.attention import Attention
from megatape.model.block import Block
from megatape.model.layout import SINGLE_RANK, Layout
from megatape.model.mlp import MLP
from megatape.model.options import DEFAULT_KERNELS, DEFAULT_TRAINING, Kernels, ModelOptions, TrainingOptions
from megatape.model.trainable import freeze
from megatape.model.transformer import Transformer
from megatape.model.wrappers.compilation import CompiledBlock, PartlyCompiledBlock, prepare_compiler, reason_for_parts
from megatape.model.wrappers.gathering import GatheredBlock
from megatape.model.wrappers.memory import ChunkedBlock, RebuiltSumBlock, RecomputedBlock, SelectiveBlock, SelectiveMLP
from megatape.model.wrappers.sequence_parallel import SequenceParallelAttention, SequenceParallelBlock
from megatape.model.wrappers.tensor_parallel import TensorParallelAttention, TensorParallelMLP

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
    options = ModelOptions(layout, kernels, training)
    updates_state = encoding_of(config).carries_state
    model = Transformer(config, options, block_class(options, updates_state))
    freeze(model, training.trainable, training.frozen)
    return model


def meta_model(config: ModelConfig, activation_checkpointing: ActivationCheckpointing = "none") -> Transformer:
    """Return a model on the meta device: shapes without memory.

    Args:
        config: Shape of the model, and its LoRA adapters.
        activation_checkpointing: Activations that its backward pass recomputes.
    """
    with torch.device("meta"):
        return build_model(config, training=TrainingOptions(activation_checkpointing=activation_checkpointing))


def block_class(options: ModelOptions, updates_state: bool) -> type[Block]:
    """Return the class of a model's blocks: Block, Attention and MLP with the wrappers that the options need, innermost first.

    Args:
        options: Ranks, kernels and memory savings of the model.
        updates_state: Whether its blocks update a position state.
    """
    layout = options.layout
    training = options.training
    is_compiled = options.kernels.compiler is not None
    blocks: list[type[Block]] = [Block]
    attentions: list[type[Attention]] = [Attention]
    mlps: list[type[MLP]] = [MLP]
    is_selective = not is_compiled and training.activation_checkpointing == "selective"

    # Selective blocks pass a Remat of the input, also on one rank.
    if layout.tensor_axis.size > 1 or is_selective:
        attentions.append(TensorParallelAttention)
        mlps.append(TensorParallelMLP)
    if is_compiled:
        if reason_for_parts(options) is None:
            blocks.append(CompiledBlock)
        else:
            blocks.append(PartlyCompiledBlock)
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
    if training.gathers_blocks:
        blocks.append(GatheredBlock)
    if recomputes_blocks(training.activation_checkpointing):
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
