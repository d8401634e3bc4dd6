"""Location of this rank's part of a parameter."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Fragment:
    """Location of a run of elements in this rank's shard of a parameter (zero/state/__init__.py).

    Attributes:
        start: Index of the first element in the shard.
        flat: Tensor holding the run. The optimizer files its state under this tensor.
        offset: Index of the first element in `flat`.
        size: Number of elements.
    """

    start: int
    flat: Tensor
    offset: int
    size: int

    def values(self, tensor: Tensor | None = None) -> Tensor:
        """Return the run's elements, flat and writable.

        Args:
            tensor: Tensor shaped like `flat` to take them from, by default `flat` itself.
        """
        if tensor is None:
            tensor = self.flat.data
        return tensor.view(-1).narrow(0, self.offset, self.size)


def unsharded_fragment(parameter: Any) -> Fragment:
    """Return the fragment for a parameter that ZeRO does not shard."""
    return Fragment(0, parameter, 0, parameter.numel())


def local_shape(parameter: Any) -> tuple[int, ...]:
    """Return the shape of this rank's shard before ZeRO. At stage 3 the parameter itself may be an empty tensor."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def local_numel(parameter: Any) -> int:
    """Return the number of elements in this rank's shard before ZeRO."""
    return getattr(parameter, "ds_numel", parameter.numel())
