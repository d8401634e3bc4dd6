"""Recording work on a GPU as a CUDA graph. Replaying it takes one launch instead of thousands.

A replay repeats the recorded operations on the same memory, and runs none of the Python code that started them. So recorded
work may only read tensors that stay where they are, and a number that changes must come from such a tensor.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

# Runs of work before recording it. Libraries allocate their workspaces, compile and choose kernels in the first ones.
WARM_UP_RUNS = 3

Work = Callable[[], object]
Replay = Callable[[], None]


class Recorder(Protocol):
    """Records work, and repeats it on the same memory.

    Everything recorded by one recorder shares memory for temporary tensors: replay it in the order of recording.
    """

    def warm_up(self, work: Work) -> None:
        """Run work without recording it, as recording requires."""

    def record(self, work: Work) -> Replay:
        """Record work without running it. Returns a function that runs the recorded operations."""


class CudaRecorder:
    """Records work as CUDA graphs."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Work) -> None:
        """Run work on a side stream, as recording it will do."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.current_stream().wait_stream(self._stream)

    def record(self, work: Work) -> Replay:
        """Record work without running it. Its results stay in memory as long as the returned function exists."""
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as the one that reads batches, may allocate pinned memory meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        return graph.replay


def stable_copy(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy on the device, for recorded work to read. A single row in memory remains a single row."""
    if _shares_rows(tensor):
        return tensor[:1].to(device, copy=True).expand_as(tensor)
    return tensor.to(device, copy=True)


def refill(held: Tensor, tensor: Tensor) -> None:
    """Copy a tensor to the memory of an earlier `stable_copy`, which has its shape."""
    if _shares_rows(held):
        held = held[:1]
        tensor = tensor[:1]
    held.copy_(tensor, non_blocking=True)


def _shares_rows(tensor: Tensor) -> bool:
    """Whether all rows of a tensor are one row of memory."""
    return tensor.dim() > 1 and tensor.stride(0) == 0
