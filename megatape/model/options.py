"""Options of a model beside its equations: ranks that divide it, functions that compute its parts, and memory savings."""

from dataclasses import dataclass
from typing import TypeVar

from megatape.attention.attend import Attend, attend
from megatape.distributed.mesh import SINGLE, Axis
from megatape.encodings.encoding import EncodingModule, StateUpdate
from megatape.nn.linear import Linear
from megatape.nn.product import Product, linear

Module = TypeVar("Module", bound=EncodingModule | None)


@dataclass(frozen=True)
class ModelOptions:
    """Options of a model, which model/build.py chooses. By default one rank computes the equations as they are written.

    Attributes:
        tensor_axis: Tensor-parallel ranks, which divide the model.
        sequence_axis: Sequence-parallel ranks, which divide samples, and the heads of attention.
        context_axis: Context-parallel ranks, which divide samples in attention, too.
        attend: Function that computes attention: `attend` of attention/attend.py, or one with its arguments.
        attend_in_training: Function that computes attention in training; None: `attend`.
        product: Matrix product of the blocks' layers in training.
        update_by_kernel: Whether Triton kernels update the position state, where they can.
        z_loss: Factor of the squared log-sum-exp in the loss.
        loss_by_kernel: Whether a Triton kernel computes the loss, where it can.
        chunk_tokens: Number of this rank's tokens that a ChunkedBlock computes at a time.
        offload: Whether a RecomputedBlock saves the streams in host memory.
        compiler: Backend of torch.compile for a CompiledBlock.
    """

    tensor_axis: Axis = SINGLE
    sequence_axis: Axis = SINGLE
    context_axis: Axis = SINGLE
    attend: Attend = attend
    attend_in_training: Attend | None = None
    product: Product = linear
    update_by_kernel: bool = False
    z_loss: float = 0.0
    loss_by_kernel: bool = False
    chunk_tokens: int | None = None
    offload: bool = False
    compiler: str = "inductor"

    def configure(self, module: Module) -> Module:
        """Set the ranks, kernels and products of a new module of an encoding, or of None. Returns the module.

        Constructors of encodings' modules, which users write, only take the tensor-parallel ranks.
        """
        if module is None:
            return module
        for part in module.modules():
            if isinstance(part, EncodingModule):
                part.set_ranks(self.sequence_axis, self.context_axis)
            if isinstance(part, StateUpdate):
                part.use_kernels(self.update_by_kernel)
            if isinstance(part, Linear):
                part.use_product(self.product)
        return module


DEFAULT_OPTIONS = ModelOptions()
