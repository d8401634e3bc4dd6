"""Makes the linear layers of blocks, with or without LoRA adapters."""

from dataclasses import dataclass

from megatape.config import LoraConfig
from megatape.distributed.mesh import Axis
from megatape.model.lora import TARGETS
from megatape.model.seeds import seed_of
from megatape.nn.linear import RowLinear, SharedInputLinear
from megatape.nn.linear_function import LinearFunction
from megatape.nn.lora import AdapterOptions, LoraColumnLinear, LoraRowLinear


@dataclass(frozen=True)
class LayerFactory:
    """Makes the linear layers of one block.

    Attributes:
        block: Index of the block.
        tensor_axis: Tensor-parallel ranks sharding each layer.
        linear_function: Function computed in training.
        lora: Adapters and the layers that get one, or None.
    """

    block: int
    tensor_axis: Axis
    linear_function: LinearFunction
    lora: LoraConfig | None

    def column(self, name: str, in_features: int, out_features: int, bias: bool = False) -> SharedInputLinear:
        """Return a new layer with sharded outputs. name: Key of TARGETS."""
        adapter = self._adapter(name)
        if adapter is None:
            return SharedInputLinear(in_features, out_features, self.tensor_axis, bias, linear_function=self.linear_function)
        return LoraColumnLinear(in_features, out_features, self.tensor_axis, bias, self.linear_function, adapter)

    def row(self, name: str, in_features: int, out_features: int, bias: bool = False) -> RowLinear:
        """Return a new layer with sharded inputs. name: Key of TARGETS."""
        adapter = self._adapter(name)
        if adapter is None:
            return RowLinear(in_features, out_features, self.tensor_axis, bias, self.linear_function)
        return LoraRowLinear(in_features, out_features, self.tensor_axis, bias, self.linear_function, adapter)

    def _adapter(self, name: str) -> AdapterOptions | None:
        """Return the options of a layer's adapter, or None."""
        lora = self.lora
        if lora is None or name not in lora.targets:
            return None
        # Each layer draws its dropout from a random number of its own.
        layer = seed_of(f"{self.block}.{TARGETS[name]}", 56, "big")
        return AdapterOptions(lora.rank, lora.alpha, lora.dropout, layer)
