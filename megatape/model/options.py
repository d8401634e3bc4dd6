"""Options of a model that leave its equations alone: its ranks, kernels, trainable parameters and memory savings."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TypeVar

from megatape.attention.attend import Backends
from megatape.config import ActivationCheckpointing
from megatape.encodings.encoding import EncodingModule, StateUpdate
from megatape.model.layout import SINGLE_RANK, Layout
from megatape.nn.linear import Linear
from megatape.nn.linear_function import LinearFunction, linear

Module = TypeVar("Module", bound=EncodingModule | None)


@dataclass(frozen=True)
class Kernels:
    """Kernels of a model. A run selects those that work on all ranks (training/startup/engine/working_kernels.py).

    Attributes:
        backends: Names of attention backends in order of preference, or None for the order of `auto`.
        rotation_by_kernel: Whether Triton kernels rotate queries and keys before PyTorch's attention, where they can.
        deterministic: Whether attention must give the same gradients for the same inputs, bit for bit.
        update_by_kernel: Whether Triton kernels update the position state, where they can.
        loss_by_kernel: Whether a Triton kernel computes the loss, where it can.
        linear_function: Function of the blocks' linear layers in training: `linear`, or one from nn/fp8.py.
        compiler: Backend of torch.compile for the blocks in training, or None if they are not compiled.
    """

    backends: Backends | None = None
    rotation_by_kernel: bool = False
    deterministic: bool = False
    update_by_kernel: bool = False
    loss_by_kernel: bool = True
    linear_function: LinearFunction = linear
    compiler: str | None = None


@dataclass(frozen=True)
class TrainingOptions:
    """Options of a model's training, with the names and meanings of the settings in the section `training`.

    Attributes:
        trainable: Groups or patterns of trainable parameters. All others are frozen.
        frozen: Groups or patterns of parameters to freeze nevertheless.
        z_loss: Factor of the squared log-sum-exp in the loss.
        num_shifted_groups: Number of groups in shifted sparse attention, or None for dense attention.
        activation_checkpointing: Tensors of a block that autograd saves.
            none: All tensors except the last sum of a block that updates the position state.
            selective: Outputs of linear layers and attention.
            full: The streams between blocks.
            offload: The streams between blocks, in host memory.
        chunk_tokens: Number of tokens passing through MLP and position update at a time, or None for all.
        gathers_blocks: Whether ZeRO stage 3 gathers the weights of a whole block at once, so that a compiled block contains no
            hooks. No setting: it follows from `zero.stage` and `training.compile`.
    """

    trainable: Sequence[str] = ("all",)
    frozen: Sequence[str] = ()
    z_loss: float = 0.0
    num_shifted_groups: int | None = None
    activation_checkpointing: ActivationCheckpointing = "none"
    chunk_tokens: int | None = None
    gathers_blocks: bool = False


DEFAULT_KERNELS = Kernels()
DEFAULT_TRAINING = TrainingOptions()


@dataclass(frozen=True)
class ModelOptions:
    """Options of a model. By default it is on one rank, and only the loss is computed by a kernel, on a GPU.

    Attributes:
        layout: Ranks that the model is distributed over.
        kernels: Kernels that compute it.
        training: Trainable parameters, loss, and memory savings.
    """

    layout: Layout = SINGLE_RANK
    kernels: Kernels = DEFAULT_KERNELS
    training: TrainingOptions = DEFAULT_TRAINING

    def configure(self, module: Module) -> Module:
        """Set ranks, kernels and linear functions of an encoding's new module, and return it. None stays None.

        Users write these modules, and their constructors only take the tensor-parallel ranks.
        """
        if module is None:
            return module
        update_by_kernel = self.kernels.update_by_kernel and find_spec("triton") is not None
        for part in module.modules():
            if isinstance(part, EncodingModule):
                part.set_ranks(self.layout.sequence_axis, self.layout.context_axis)
            if isinstance(part, StateUpdate):
                part.use_kernels(update_by_kernel)
            if isinstance(part, Linear):
                part.use_linear_function(self.kernels.linear_function)
        return module


DEFAULT_OPTIONS = ModelOptions()
