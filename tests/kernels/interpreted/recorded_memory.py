"""Running single programs of a kernel on memory recording all accesses, for tensors without storage."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from triton.runtime import interpreter

from tests.kernels.launches import Launch


class Access(NamedTuple):
    """A program's load or store.

    Attributes:
        first: First touched address.
        last: Address of the last touched element.
        num_elements: Number of different elements.
    """

    first: int
    last: int
    num_elements: int


class Memory:
    """Stand-in for memory, recording accesses. Reading document bounds returns `token`, and anything else zero."""

    def __init__(self, token: int = 0) -> None:
        self.token = token
        self.accesses: list[Access] = []

    def load(self, pointers: np.ndarray, mask: np.ndarray, other: np.ndarray, dtype: Any) -> np.ndarray:
        self._record(pointers, mask)
        value = 0
        if dtype == np.int64:
            value = self.token
        return np.full(pointers.shape, value, dtype)

    def store(self, pointers: np.ndarray, values: np.ndarray, mask: np.ndarray) -> None:
        self._record(pointers, mask)

    def _record(self, pointers: np.ndarray, mask: np.ndarray) -> None:
        used = np.unique(pointers[np.broadcast_to(mask, pointers.shape)])
        if used.size:
            self.accesses.append(Access(int(used[0]), int(used[-1]), used.size))


class RecordedLaunch:
    """Launch running its programs on recorded memory.

    Attributes:
        launch: The launch.
        tensors: Its tensors by name. They need no storage.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.tensors = {name: value for name, value in launch.arguments.items() if isinstance(value, torch.Tensor)}
        self._addresses = {name: (number + 1) << 44 for number, name in enumerate(self.tensors)}

    def accesses(self, memory: Memory, program: tuple[int, int, int]) -> dict[str, list[Access]]:
        """Run one program. Return its accesses to each tensor, with addresses relative to the tensor."""
        run_program(self.launch, memory, self._addresses, program)
        by_tensor: dict[str, list[Access]] = {}
        for name, address in self._addresses.items():
            by_tensor[name] = [
                Access(access.first - address, access.last - address, access.num_elements)
                for access in memory.accesses
                if abs(access.first - address) < 2**43
            ]
        return by_tensor


def run_program(launch: Launch, memory: Memory, addresses: dict[str, int], program: tuple[int, int, int]) -> None:
    """Run a program on tensors at these addresses."""

    def pointer(name: str) -> SimpleNamespace:
        return SimpleNamespace(dtype=launch.arguments[name].dtype, data_ptr=lambda: addresses[name])

    grid = (*launch.grid, 1, 1)[:3]
    interpreter.interpreter_builder.set_grid_dim(*grid)
    interpreter.interpreter_builder.set_grid_idx(*program)
    constants = {parameter for parameter, kind in launch.kernel.fn.__annotations__.items() if kind is interpreter.tl.constexpr}
    real = interpreter._interpreter
    interpreter._interpreter = memory
    scope = interpreter._patch_lang(launch.kernel.fn)
    try:
        arguments = {}
        for name, value in launch.arguments.items():
            if name in addresses:
                value = pointer(name)
            if name not in constants:
                value = interpreter._implicit_cvt(value)
            arguments[name] = value
        launch.kernel.rewrite()(**arguments)
    finally:
        scope.restore()
        interpreter._interpreter = real
