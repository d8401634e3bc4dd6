"""Options of a model that leave its equations alone: its kernels, trainable parameters and memory savings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from megatape.attention.attend import Attend, Backends, attend
from megatape.config import ActivationCheckpointing
from megatape.encodings.encoding import EncodingModule, StateUpdate
from megatape.model.layout import SINGLE_RANK, Layout
from megatape.nn.linear import Linear
from megatape.nn.product import LinearFunction, linear

Module = TypeVar("Module", bound=EncodingModule | None)


@dataclass(frozen=True)
class Kernels:
    """Kernels of a model. A run selects those that work on all ranks (training/startup/working_kernels.py).

    Attributes:
        backends: Names of attention backends in order of preference. None for the order of `auto`.
        rotation_by_kernel: Whether Triton kernels rotate queries and keys before PyTorch's attention, where they can.
        update_by_kernel: Whether Triton kernels update the position state, where they can.
        loss_by_kernel: Whether a Triton kernel computes the loss, where it can.
        fp8: Matrix product of the blocks' layers in training, from nn/fp8.py. None for the plain product.
        compiler: Backend of torch.compile for the blocks in training. None if they are not compiled.
    """

    backends: Backends | None = None
    rotation_by_kernel: bool = False
    update_by_kernel: bool = False
    loss_by_kernel: bool = True
    fp8: LinearFunction | None = None
    compiler: str | None = None


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a model's training, with the names and meanings of the settings in the section `training`.

    Attributes:
        trainable: Groups or patterns of trainable parameters. All others are frozen.
        frozen: Groups or patterns of parameters to freeze nevertheless.
        z_loss: Factor of the squared log-sum-exp in the loss.
        num_shifted_groups: Number of groups in shifted sparse attention. None for dense attention.
        activation_checkpointing: What autograd saves of a block.
            none: All tensors except the last sum of a block that updates the position state.
            selective: Matrix products and attention.
            full: The streams between blocks.
            offload: The streams between blocks, in host memory.
        chunk_tokens: Number of tokens passing through MLP and position update at a time. None for all.
    """

    trainable: Sequence[str] = ("all",)
    frozen: Sequence[str] = ()
    z_loss: float = 0.0
    num_shifted_groups: int | None = None
    activation_checkpointing: ActivationCheckpointing = "none"
    chunk_tokens: int | None = None


DEFAULT_KERNELS = Kernels()
DEFAULT_TRAINING = TrainingOptions()


@dataclass(frozen=True)
class ModelOptions:
    """Options read by the modules of a model. The defaults compute the equations as written, on one rank.

    Attributes:
        layout: Ranks that the model is distributed over.
        attend: Function that computes attention: `attend` of attention/attend.py, or one with the same arguments.
        attend_in_training: Function that computes attention in training. None for `attend`.
        product: Matrix product of the blocks' layers in training.
        update_by_kernel: Whether Triton kernels update the position state, where they can.
        z_loss: Factor of the squared log-sum-exp in the loss.
        loss_by_kernel: Whether a Triton kernel computes the loss, where it can.
        chunk_tokens: Number of this rank's tokens that a ChunkedBlock computes at a time.
        offload: Whether a RecomputedBlock saves the streams in host memory.
        compiler: Backend of torch.compile for a CompiledBlock.
    """

    layout: Layout = SINGLE_RANK
    attend: Attend = attend
    attend_in_training: Attend | None = None
    product: LinearFunction = linear
    update_by_kernel: bool = False
    z_loss: float = 0.0
    loss_by_kernel: bool = False
    chunk_tokens: int | None = None
    offload: bool = False
    compiler: str = "inductor"

    def configure(self, module: Module) -> Module:
        """Set ranks, kernels and products of an encoding's new module, and return it. None stays None.

        Users write these modules, and their constructors only take the tensor-parallel ranks.
        """
        if module is None:
            return module
        for part in module.modules():
            if isinstance(part, EncodingModule):
                part.set_ranks(self.layout.sequence_axis, self.layout.context_axis)
            if isinstance(part, StateUpdate):
                part.use_kernels(self.update_by_kernel)
            if isinstance(part, Linear):
                part.use_product(self.product)
        return module


DEFAULT_OPTIONS = ModelOptions()
