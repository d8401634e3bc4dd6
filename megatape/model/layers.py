"""The linear layers of a block, with the LoRA adapters that model.lora asks for."""

import hashlib
from dataclasses import dataclass

from megatape.config import LoraConfig
from megatape.distributed.mesh import Axis
from megatape.model.lora import TARGETS
from megatape.nn.linear import RowLinear, SharedInputLinear
from megatape.nn.lora import AdapterOptions, LoraColumnLinear, LoraRowLinear
from megatape.nn.product import Product


@dataclass(frozen=True)
class LayerFactory:
    """Makes the linear layers of one block.

    Attributes:
        block: Index of the block.
        tensor_axis: Tensor-parallel ranks, which divide each layer.
        product: Matrix product of the layers in training.
        lora: Which layers have an adapter; None: none.
    """

    block: int
    tensor_axis: Axis
    product: Product
    lora: LoraConfig | None

    def column(self, name: str, in_features: int, out_features: int, bias: bool = False) -> SharedInputLinear:
        """Return a new layer whose outputs the ranks divide. name: Key of TARGETS."""
        adapter = self._adapter(name)
        if adapter is None:
            return SharedInputLinear(in_features, out_features, self.tensor_axis, bias, product=self.product)
        return LoraColumnLinear(in_features, out_features, self.tensor_axis, bias, self.product, adapter)

    def row(self, name: str, in_features: int, out_features: int, bias: bool = False) -> RowLinear:
        """Return a new layer whose inputs the ranks divide. name: Key of TARGETS."""
        adapter = self._adapter(name)
        if adapter is None:
            return RowLinear(in_features, out_features, self.tensor_axis, bias, self.product)
        return LoraRowLinear(in_features, out_features, self.tensor_axis, bias, self.product, adapter)

    def _adapter(self, name: str) -> AdapterOptions | None:
        """Return the options of a layer's adapter; None for a layer without."""
        lora = self.lora
        if lora is None or name not in lora.targets:
            return None
        # A random number of the layer, from which its dropout is drawn.
        digest = hashlib.sha256(f"{self.block}.{TARGETS[name]}".encode()).digest()
        layer = int.from_bytes(digest[:7])
        return AdapterOptions(lora.rank, lora.alpha, lora.dropout, layer)
