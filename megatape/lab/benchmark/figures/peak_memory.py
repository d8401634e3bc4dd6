"""Peak memory counted by tensors, on any device."""

import weakref
from typing import Any

from torch import Tensor

from megatape.utils.pytorch.torch_internals import TorchDispatchMode, storage_id, tree_leaves


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of tensors created in the block: those existing now, and their peak."""

    def __init__(self, inputs: list[Tensor]) -> None:
        """Start counting. Storages of `inputs` do not count."""
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known = {storage_id(tensor) for tensor in inputs}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        """Count a tensor's storage until it is freed, unless it is known."""
        storage = tensor.untyped_storage()
        identity = storage_id(tensor)
        if identity in self._known:
            return
        num_bytes = storage.nbytes()
        self._known.add(identity)
        self.now += num_bytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, identity, num_bytes)

    def _freed(self, identity: int, num_bytes: int) -> None:
        self._known.discard(identity)
        self.now -= num_bytes
