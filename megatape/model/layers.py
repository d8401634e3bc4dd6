"""Makes the linear layers of blocks, with or without LoRA adapters."""

import hashlib
from dataclasses import dataclass

from megatape.config import LoraConfig
from megatape.distributed.mesh import Axis
from megatape.model.lora import TARGETS
from megatape.nn.linear import RowLinear, SharedInputLinear
from megatape.nn.lora import AdapterOptions, LoraColumnLinear, LoraRowLinear
from megatape.nn.product import LinearFunction


@dataclass(frozen=True)
class LayerFactory:
    """Makes the linear layers of one block.

    Attributes:
        block: Index of the block.
        tensor_axis: Tensor-parallel ranks sharding each layer.
        product: Matrix product in training.
        lora: Adapters and the layers that get one, or None.
    """

    block: int
    tensor_axis: Axis
    product: LinearFunction
    lora: LoraConfig | None

    def column(self, name: str, in_features: int, out_features: int, bias: bool = False) -> SharedInputLinear:
        """Return a new layer with outputs distributed over ranks. name: Key of TARGETS."""
        adapter = self._adapter(name)
        if adapter is None:
            return SharedInputLinear(in_features, out_features, self.tensor_axis, bias, product=self.product)
        return LoraColumnLinear(in_features, out_features, self.tensor_axis, bias, self.product, adapter)

    def row(self, name: str, in_features: int, out_features: int, bias: bool = False) -> RowLinear:
        """Return a new layer with inputs distributed over ranks. name: Key of TARGETS."""
        adapter = self._adapter(name)
        if adapter is None:
            return RowLinear(in_features, out_features, self.tensor_axis, bias, self.product)
        return LoraRowLinear(in_features, out_features, self.tensor_axis, bias, self.product, adapter)

    def _adapter(self, name: str) -> AdapterOptions | None:
        """Return adapter options for a layer, or None if it has no adapter."""
        lora = self.lora
        if lora is None or name not in lora.targets:
            return None
        # Each layer draws its dropout from a random number of its own.
        digest = hashlib.sha256(f"{self.block}.{TARGETS[name]}".encode()).digest()
        layer = int.from_bytes(digest[:7])
        return AdapterOptions(lora.rank, lora.alpha, lora.dropout, layer)
