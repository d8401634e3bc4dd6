"""Process groups of a topology, under the names by which DeepSpeed asks for them (its "mpu"), and small talk between ranks."""

import torch.distributed as dist

from megatape.parallel.collectives import Axis
from megatape.runtime.topology import Topology


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
    def tensor_ranks(self) -> Axis:
        """What the model's layers need to know."""
        return Axis(self.topology.tensor_size, self.topology.tensor_rank, self.tensor)

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
