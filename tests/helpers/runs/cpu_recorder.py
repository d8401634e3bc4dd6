"""A recorder replaying operations one by one on a CPU, in place of a CUDA graph.

It finds code that CUDA graphs cannot repeat. A replay runs no Python of the recorded work, so a number that Python computes in
each step and a tensor that a step replaces lead to wrong results. Reading a tensor's value is an error. As with a CUDA graph,
recording changes no memory: its writes are undone. Replays begin with NaN in the tensors that they make, so that nothing is
read that was not computed in the same replay.

It does not see kernels that bypass torch's dispatcher (Triton's and compiled C++), copies from the host to a GPU, memory that
is freed while a graph still reads it, and streams.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from megatape.utils.pytorch.recorder import Replay, Work
from megatape.utils.pytorch.torch_internals import storage_id

# Tags of operations for which a GPU sends values to the host
NEEDS_HOST = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class CpuRecorder:
    """Records operations and repeats them on the same memory.

    Attributes:
        num_recorded: Number of calls to `record`.
        num_replayed: Number of calls to the returned functions.
    """

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_replayed = 0

    def warm_up(self, work: Work) -> None:
        work()

    def record(self, work: Work) -> Replay:
        self.num_recorded += 1
        generator_state = torch.get_rng_state()
        recording = Recording()
        with recording:
            work()
        recording.undo()
        torch.set_rng_state(generator_state)

        def replay() -> None:
            self.num_replayed += 1
            recording.replay()

        return replay


class RecordedOperation:
    """Operation with its arguments and results, repeated on the same memory."""

    def __init__(self, function: Any, args: Any, options: Any, results: Any) -> None:
        self._function = function
        self._args = args
        self._options = options
        self._results = _tensors(results)

    def repeat(self) -> None:
        results = _tensors(self._function(*self._args, **self._options))
        for target, result in zip(self._results, results, strict=True):
            if target.data_ptr() != result.data_ptr():
                target.copy_(result)


class Recording(TorchDispatchMode):
    """Records all operations inside its block."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[RecordedOperation] = []
        # Tensors by their memory: those made by the operations, and earlier contents of others that they change
        self._made: dict[int, Tensor] = {}
        self._outside: dict[int, Tensor] = {}
        self._contents: dict[int, Tensor] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _needs_host(function, args):
            raise RuntimeError(f"{function}: the host waits for a value of the device")
        for tensor in _tensors((args, kwargs)):
            if storage_id(tensor) not in self._made:
                self._outside.setdefault(storage_id(tensor), tensor)
        for tensor in _written(function, args, kwargs):
            memory = storage_id(tensor)
            if memory in self._outside and memory not in self._contents:
                self._contents[memory] = _all_elements(self._outside[memory]).clone()
        results = function(*args, **kwargs)
        for tensor in _tensors(results):
            if storage_id(tensor) not in self._outside:
                self._made.setdefault(storage_id(tensor), tensor)
        self._operations.append(RecordedOperation(function, args, kwargs, results))
        return results

    @torch.no_grad()
    def undo(self) -> None:
        """Undo all changes by the operations."""
        for memory, contents in self._contents.items():
            _all_elements(self._outside[memory]).copy_(contents)
        self._clear()

    @torch.no_grad()
    def replay(self) -> None:
        """Run the operations."""
        self._clear()
        for operation in self._operations:
            operation.repeat()

    def _clear(self) -> None:
        """Overwrite what the operations made, so that reading anything earlier is noticed."""
        for tensor in self._made.values():
            if tensor.is_floating_point():
                _all_elements(tensor).fill_(float("nan"))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _needs_host(function: Any, args: Any) -> bool:
    """Whether the size of the result, or the result on the host, depends on values, which a GPU would send to the host."""
    if function is torch.ops.aten.index.Tensor:
        # The size depends on values only if masks choose the elements.
        return any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1]))
    return bool(NEEDS_HOST & set(function.tags))


def _written(function: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Yield the arguments changed by an operation."""
    for index, argument in enumerate(function._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        yield from _tensors(value)


def _all_elements(tensor: Tensor) -> Tensor:
    """Return all elements in a tensor's memory."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())  # type: ignore[call-overload, no-any-return]
