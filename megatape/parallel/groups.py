"""Process groups of a topology, under the names by which DeepSpeed asks for them (its "mpu"), and small talk between ranks."""

import json
from typing import Any

import torch
import torch.distributed as dist

from megatape.parallel.collectives import TensorRanks
from megatape.parallel.topology import Topology


class Groups:
    """The tensor group and the data group of this rank. Collective: every rank of the run makes all groups in the same order."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        size, world = topology.tensor_size, topology.world_size
        self.tensor, _ = dist.new_subgroups_by_enumeration(
            [list(range(first, first + size)) for first in range(0, world, size)]
        )
        self.data, _ = dist.new_subgroups_by_enumeration([list(range(first, world, size)) for first in range(size)])

    @property
    def tensor_ranks(self) -> TensorRanks:
        """What the model's layers need to know."""
        return TensorRanks(self.topology.tensor_size, self.topology.tensor_rank, self.tensor)

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        return self.tensor

    def get_model_parallel_rank(self) -> int:
        return self.topology.tensor_rank

    def get_model_parallel_world_size(self) -> int:
        return self.topology.tensor_size

    get_tensor_model_parallel_group = get_model_parallel_group
    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_world_size = get_model_parallel_world_size

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        return self.data

    def get_data_parallel_rank(self) -> int:
        return self.topology.data_rank

    def get_data_parallel_world_size(self) -> int:
        return self.topology.data_size

    def get_data_parallel_group_ranks(self) -> list[int]:
        return dist.get_process_group_ranks(self.data)

    def get_pipeline_model_parallel_world_size(self) -> int:
        return 1


def exchange(value: Any, topology: Topology) -> list[Any]:
    """Every rank's JSON value, in order, on every rank. Collective over all ranks; nothing is pickled."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device)
    sizes = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(topology.world_size)]
    dist.all_gather(sizes, torch.tensor([text.numel()], device=device))
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8, device=device)
    padded[: text.numel()] = text
    texts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(texts, padded)
    return [json.loads(bytes(text[: int(size)].cpu().tolist())) for text, size in zip(texts, sizes, strict=True)]
