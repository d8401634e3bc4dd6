"""Builds a model, and applies to it from outside all that is not in its equations.

At the end are blocks whose norms, MLP and position update torch.compile fuses.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from megatape.attention.attend import Backends, attend
from megatape.attention.backends.blocked import Blocked
from megatape.attention.rotation import PositionState
from megatape.attention.shifted import ShiftedSparse
from megatape.config import ActivationCheckpointing, ModelConfig
from megatape.distributed.mesh import SINGLE, Axis
from megatape.encodings.encoding import EncodingModule, StateUpdate
from megatape.errors import UserError
from megatape.model.block import Attention, Block, Streams, swiglu
from megatape.model.lora import add_adapters
from megatape.model.trainable import freeze
from megatape.model.transformer import Transformer
from megatape.nn.linear import Linear, Product
from megatape.nn.remat import add, keep_on_host, linear, rebuild_output, recompute, remat
from megatape.utils.torch_internals import has_cpp_compiler, limit_recompilations


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
    update_by_kernel: bool = False,
    z_loss: float = 0.0,
    loss_by_kernel: bool = True,
    num_shifted_groups: int | None = None,
    activation_checkpointing: ActivationCheckpointing = "none",
    chunk_tokens: int | None = None,
    compiler: str | None = None,
) -> Transformer:
    """A model whose weights are uninitialized.

    What is not in its equations is applied in this order:

    1. The division of samples by tokens.
    2. LoRA adapters, since their parameters can be frozen and their layers multiply.
    3. Freezing.
    4. FP8, which takes the place of every product of a block's layer.
    5. Attention backends, the kernel of the position update, and what the loss consists of.
    6. Shifted groups, around the attention of the chosen backends.
    7. Rematerialization, of what is there by now.
    8. Compilation, which traces all of it.

    Args:
        config: Its shape, and its LoRA adapters.
        tensor_axis: The tensor-parallel ranks that divide it.
        sequence_axis: The sequence-parallel ranks that divide its samples.
        context_axis: The context-parallel ranks that divide them before, among which keys and values pass around in attention.
        trainable: Entries of training.trainable; all other parameters are frozen.
        frozen: Entries of training.frozen, which are frozen too.
        fp8: The product of the blocks' layers in training, from nn/fp8.py.
        backends: Names of attention backends in order of preference; None for all that are registered.
        update_by_kernel: Whether our own kernels update the position state, where they can.
        z_loss: Factor of the squared log-sum-exp in the loss (training.z_loss).
        loss_by_kernel: Whether our own kernel computes the loss, where it can.
        num_shifted_groups: Groups of shifted sparse attention in training; None: dense.
        activation_checkpointing: What the backward pass computes again.
        chunk_tokens: As Block has it.
        compiler: A backend of torch.compile for the blocks in training; None: they run as they are.
    """
    model = Transformer(config, tensor_axis)
    divide_samples(model, sequence_axis, context_axis)
    if config.lora is not None:
        add_adapters(model.blocks, config.lora)
    freeze(model, trainable, frozen)
    if fp8 is not None:
        multiply_in_fp8(model, fp8)
    use_backends(model, backends, update_by_kernel)
    model.head.formula = model.head.formula._replace(z_loss=z_loss, by_kernel=loss_by_kernel)
    if num_shifted_groups is not None:
        shift_groups(model, num_shifted_groups)
    checkpoint_activations(model, activation_checkpointing, chunk_tokens)
    if compiler is not None:
        compile_blocks(model, compiler)
    return model


def divide_samples(model: Transformer, sequence_axis: Axis, context_axis: Axis) -> None:
    """Let each of these ranks compute on its own tokens of a sample, and sequence-parallel ones in attention on their heads."""
    model.sequence_axis = sequence_axis
    model.context_axis = context_axis
    for module in model.modules():
        if isinstance(module, Block | Attention):
            module.sequence_axis = sequence_axis
        if isinstance(module, EncodingModule):
            module.sequence = sequence_axis
            module.context = context_axis


def multiply_in_fp8(model: Transformer, product: Product) -> None:
    """Let blocks multiply by q, k, v, o, gate, up and down with `product` in training.

    The rest stays as it is: embedding is no product; the head's logits and their loss need the precision; what position
    encodings multiply is too small to gain anything.
    """
    for layer in model.blocks.modules():
        if isinstance(layer, Linear):
            layer.product = product


def use_backends(model: Transformer, backends: Backends | None, update_by_kernel: bool) -> None:
    """Choose what computes attention, and whether our own kernels update the position state."""
    for module in model.modules():
        if isinstance(module, Attention):
            ring = model.context_axis.size > 1
            module.attend = Blocked(model.context_axis).attend if ring else partial(attend, backends=backends)
        elif isinstance(module, StateUpdate):
            module.by_kernel = update_by_kernel and find_spec("triton") is not None


def shift_groups(model: Transformer, num_groups: int) -> None:
    """Let attention be shifted and sparse in training, with this number of groups of tokens in a sample.

    The second half of the whole model's key/value heads is shifted, whatever share of them this rank holds.
    """
    config = model.config
    tensor_axis = model.tensor_axis
    sequence_axis = model.sequence_axis
    own = config.num_kv_heads // (tensor_axis.size * sequence_axis.size)
    first = (tensor_axis.rank * sequence_axis.size + sequence_axis.rank) * own
    num_unshifted = min(max(config.num_kv_heads // 2 - first, 0), own)
    for module in model.modules():
        if isinstance(module, Attention):
            module.sparse = ShiftedSparse(num_groups, num_unshifted, module.attend)


class RecomputedBlock(Block):
    """A block of which autograd keeps only the streams before it: in training its calls, hooks included, run again.

    Attributes:
        offloads: Whether it keeps them in host memory.
    """

    offloads: bool

    def __call__(self, streams: Streams, document_starts: Tensor | None = None) -> Streams:
        call: Callable[..., Streams] = super().__call__
        if not self.training:
            return call(streams, document_starts)

        def run(x: Tensor, initial: Tensor | None, delta: Tensor | None, document_starts: Tensor | None) -> Streams:
            return call(Streams(x, PositionState(initial, delta)), document_starts)

        x, state = streams  # autograd keeps arguments that are tensors, but not those inside of tuples
        with keep_on_host(x, state.delta) if self.offloads else nullcontext():
            found: Streams = recompute(run, x, *state, document_starts)
        return found


def checkpoint_activations(model: Transformer, mode: ActivationCheckpointing, chunk_tokens: int | None) -> None:
    """Choose what autograd keeps of a block in training.

    none: The last sum of a block that moves the position state is rebuilt from its terms: the MLP's norm keeps one and the
        position update the other.
    selective: Norms and the MLP's product of gate and up are computed again, too. Matrix products and attention are kept.
    full: Only the streams between blocks are kept.
    offload: The same, in host memory.

    chunk_tokens: As Block has it: between attention and the streams after it only its arguments are kept.
    """
    for block in model.blocks:
        assert isinstance(block, Block)
        block.chunk_tokens = chunk_tokens
        if block.moves:
            block.add = add
        if mode == "selective":
            rebuild_output(block.attention_norm)
            rebuild_output(block.mlp_norm)
            block.mlp.activation = partial(remat, swiglu)
        elif mode in ("full", "offload"):
            block.__class__ = RecomputedBlock
            block.offloads = mode == "offload"  # type: ignore[assignment]  # of a RecomputedBlock by now


def compile_blocks(model: Transformer, backend: str = "inductor") -> None:
    """Compile what a block does before and after attention, which has kernels of its own, once a training step needs it.

    Blocks of the same shapes share what is compiled. backend: of torch.compile. Raises UserError if there is no C++ compiler,
    which the default one needs.
    """
    if backend == "inductor" and not has_cpp_compiler():
        raise UserError(
            "training.compile needs a C++ compiler, and this machine has none: install g++, name another one by CXX, or set "
            "training.compile to false"
        )
    limit_recompilations()
    for block in model.blocks:
        assert isinstance(block, Block)
        # A graph that breaks would be slower than none: that is an error instead.
        block.attention_norm.compile(backend=backend, fullgraph=True, dynamic=False)
        attention = block.attention
        update = block.position
        if attention.output.product is not linear:  # FP8, whose scaling takes as long as the product unless it is fused
            for layer in (attention.query, attention.key, attention.value, attention.output):
                layer.compile(backend=backend, fullgraph=True, dynamic=False)
        _compile_in_training(block, "feed_forward", backend)
        # Our own kernel multiplies, too, and the compiler fuses only what lies between products. It is for a GPU, where the
        # weights may not be yet.
        if update is not None and not (update.by_kernel and update.has_kernel(torch.device("cuda"))):
            _compile_in_training(update, "forward", backend)


def _compile_in_training(module: nn.Module, method: str, backend: str) -> None:
    """In training only, because evaluation has other shapes and cases, each of which would be compiled."""
    plain = getattr(module, method)
    compiled = torch.compile(plain, backend=backend, fullgraph=True, dynamic=False)
    setattr(module, method, lambda *args: (compiled if module.training else plain)(*args))
