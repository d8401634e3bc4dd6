"""Builds a model, and applies parallelism, kernels and memory savings to it, in this order.

1. Functions: attention, which passes keys around among context-parallel ranks (attention/backends/blocked.py), shifted sparse
   attention, the matrix product, and kernels. `ModelOptions` has them and the ranks.
2. Layers: tensor-parallel ranks divide each linear layer, embedding and loss (nn/linear.py). Their constructors take the axis,
   and gather and scatter tokens between them.
3. Blocks: `block_class` wraps the equations of block.py in what torch.compile, memory and sequence-parallel ranks need
   (compilation.py, memory.py, sample_division.py).
4. The model: `Transformer` takes this rank's share of the samples (sample_division.py) and runs the blocks.
5. Freezing of parameters (trainable.py).

ZeRO comes afterwards, around the whole model (zero/engine.py). No step changes the equations of transformer.py and block.py or
a parameter's name, and on one rank without options nothing is applied.
"""

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec

from megatape.attention.attend import Attend, Backends, attend
from megatape.attention.backends.blocked import Blocked
from megatape.attention.shifted import ShiftedSparse, num_unshifted_heads
from megatape.config import ActivationCheckpointing, ModelConfig
from megatape.distributed.mesh import SINGLE, Axis
from megatape.encodings import encoding_of
from megatape.model.block import Block
from megatape.model.compilation import CompiledBlock, prepare_compiler
from megatape.model.memory import ChunkedBlock, RebuiltSumBlock, RecomputedBlock, SelectiveBlock
from megatape.model.options import ModelOptions
from megatape.model.sample_division import SequenceParallelBlock
from megatape.model.trainable import freeze
from megatape.model.transformer import Transformer
from megatape.nn.product import Product, linear


def build_model(
    config: ModelConfig,
    tensor_axis: Axis = SINGLE,
    *,
    sequence_axis: Axis = SINGLE,
    context_axis: Axis = SINGLE,
    trainable: Sequence[str] = ("all",),
    frozen: Sequence[str] = (),
    fp8: Product | None = None,
    backends: Backends | None = None,
    rotation_by_kernel: bool = False,
    update_by_kernel: bool = False,
    z_loss: float = 0.0,
    loss_by_kernel: bool = True,
    num_shifted_groups: int | None = None,
    activation_checkpointing: ActivationCheckpointing = "none",
    chunk_tokens: int | None = None,
    compiler: str | None = None,
) -> Transformer:
    """Return a model whose weights are uninitialized.

    Args:
        config: Shape of the model, and its LoRA adapters.
        tensor_axis: Tensor-parallel ranks, which divide the model.
        sequence_axis: Sequence-parallel ranks, which divide its samples.
        context_axis: Context-parallel ranks, which divide samples first. Keys and values pass around among them in attention.
        trainable: Entries of training.trainable; all other parameters are frozen.
        frozen: Entries of training.frozen, which are frozen, too.
        fp8: Matrix product of the blocks' layers in training, from nn/fp8.py.
        backends: Names of attention backends in order of preference; None: all registered ones.
        rotation_by_kernel: Whether Triton kernels rotate queries and keys before PyTorch's attention, where they can.
        update_by_kernel: Whether Triton kernels update the position state, where they can.
        z_loss: Factor of the squared log-sum-exp in the loss (training.z_loss).
        loss_by_kernel: Whether a Triton kernel computes the loss, where it can.
        num_shifted_groups: Number of groups of shifted sparse attention in training; None: dense.
        activation_checkpointing: What the backward pass computes again (see `block_class`).
        chunk_tokens: Number of tokens that pass MLP and position update at a time; None: all.
        compiler: Backend of torch.compile for the blocks in training; None: they are not compiled.
    """
    dense: Attend = partial(attend, backends=backends, rotation_by_kernel=rotation_by_kernel)
    if context_axis.size > 1:
        dense = Blocked(context_axis).attend
    sparse = None
    if num_shifted_groups is not None:
        num_unshifted = num_unshifted_heads(config.num_kv_heads, tensor_axis, sequence_axis)
        sparse = ShiftedSparse(num_shifted_groups, num_unshifted, dense)
    if compiler is not None:
        prepare_compiler(compiler)

    options = ModelOptions(
        tensor_axis=tensor_axis,
        sequence_axis=sequence_axis,
        context_axis=context_axis,
        attend=dense,
        attend_in_training=sparse,
        product=fp8 or linear,
        update_by_kernel=update_by_kernel and find_spec("triton") is not None,
        z_loss=z_loss,
        loss_by_kernel=loss_by_kernel,
        chunk_tokens=chunk_tokens,
        offload=activation_checkpointing == "offload",
        compiler=compiler or "inductor",
    )
    chosen = block_class(
        options,
        activation_checkpointing,
        updates_state=encoding_of(config).carries_state,
        is_compiled=compiler is not None,
    )
    model = Transformer(config, options, chosen)
    freeze(model, trainable, frozen)
    return model


def block_class(
    options: ModelOptions, activation_checkpointing: ActivationCheckpointing, *, updates_state: bool, is_compiled: bool
) -> type[Block]:
    """Return the class of a model's blocks: the plain block, wrapped by what is asked for, in the order of the lines below.

    A wrapper is a subclass that computes steps of the block in another way, and leaves the names of parameters as they are.

    Args:
        options: Options of the model.
        activation_checkpointing: What autograd saves of a block in training. none: all but the last sum of a block that updates
            the position state. selective: matrix products and attention. full: the streams between blocks. offload: the same,
            in host memory.
        updates_state: Whether blocks of the model update a position state.
        is_compiled: Whether torch.compile fuses parts of a block.
    """
    wrappers: list[type[Block]] = [Block]
    if is_compiled:
        wrappers.append(CompiledBlock)
    elif activation_checkpointing == "selective":
        wrappers.append(SelectiveBlock)
    elif updates_state:
        wrappers.append(RebuiltSumBlock)
    if options.chunk_tokens is not None:
        wrappers.append(ChunkedBlock)
    if options.sequence_axis.size > 1:
        wrappers.append(SequenceParallelBlock)
    if activation_checkpointing in ("full", "offload"):
        wrappers.append(RecomputedBlock)
    if len(wrappers) == 1:
        return Block
    # The outermost wrapper comes first, and its super() is the next one.
    outermost_first = tuple(reversed(wrappers))
    return type("TrainedBlock", outermost_first, {})
