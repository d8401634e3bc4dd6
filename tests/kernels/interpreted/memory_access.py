"""Memory touched by kernels: reaching the end of large tensors, and traffic during the update."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from megatape.attention.kernels import head_launches
from tests.kernels.interpreted.recorded_memory import Memory, RecordedLaunch
from tests.kernels.launches import Launch, launches, loss_launches, rotation_launches, update_launches


class Reach(NamedTuple):
    """Part of a tensor touched by a kernel's last program.

    Attributes:
        kernel: Name of the kernel.
        tensor: Name of the tensor.
        first: First touched address, as a share of the tensor.
        end: End of the last touched element, as a share of the tensor.
    """

    kernel: str
    tensor: str
    first: float
    end: float


class Traffic(NamedTuple):
    """Bytes read and written in a tensor by all programs of a kernel.

    Attributes:
        kernel: Name of the kernel.
        tensor: Name of the tensor.
        moved: Bytes moved by the programs. Reading a byte twice at a time counts once.
        size: Bytes of the tensor.
    """

    kernel: str
    tensor: str
    moved: int
    size: int


# Shape with more than 2^31 numbers in q
LARGE = (1, 2**21 + 5, 16, 8, 64)
# Shape with as many numbers, in samples short enough for the program walking from the first token to the last
MANY = (2**14, 150, 16, 8, 64)


def reaches(launch: Launch) -> Iterator[Reach]:
    """Yield the part of each tensor touched by the program for the last block and head."""
    document_start = launch.arguments.get("length", 0)
    if launch.kernel is not head_launches.keys_kernel:
        document_start -= 40
    block = launch.grid[0] - 1
    if launch.kernel in (head_launches.forward_kernel, head_launches.queries_kernel, head_launches.distances_kernel):
        # These kernels run the last block first.
        block = 0
    _, heads, samples = (*launch.grid, 1, 1)[:3]
    recorded = RecordedLaunch(launch)
    for name, touched in recorded.accesses(Memory(document_start), (block, heads - 1, samples - 1)).items():
        tensor = recorded.tensors[name]
        last_index = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
        size = tensor.element_size() * (last_index + 1)
        first = min(access.first for access in touched)
        end = max(access.last for access in touched) + tensor.element_size()
        yield Reach(launch.kernel.__name__, name, first / size, end / size)


def traffic(launch: Launch) -> Iterator[Traffic]:
    """Yield the traffic in each tensor, for a launch with one grid dimension."""
    recorded = RecordedLaunch(launch)
    moved = dict.fromkeys(recorded.tensors, 0)
    for program in range(launch.grid[0]):
        for name, touched in recorded.accesses(Memory(), (program, 0, 0)).items():
            num_elements = sum(access.num_elements for access in touched)
            moved[name] += num_elements * recorded.tensors[name].element_size()
    for name, tensor in recorded.tensors.items():
        yield Traffic(launch.kernel.__name__, name, moved[name], tensor.element_size() * tensor.numel())


def large_launches() -> list[Launch]:
    """Return launches of all kernels, with tensors needing 64-bit offsets."""
    biased = launches(MANY, torch.bfloat16, documents=False, biased=True)
    return [
        *launches(LARGE, torch.bfloat16, documents=True, decays=True),
        *(launch for launch in biased if launch.kernel is head_launches.distances_kernel),
        *rotation_launches(LARGE, torch.bfloat16),
        *loss_launches(2**16, 2**15 + 3),
        *update_launches(LARGE, 12, torch.bfloat16, processors=LARGE[1]),
    ]
