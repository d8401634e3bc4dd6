"""The mesh behind the interface that DeepSpeed calls "mpu"."""

import torch.distributed as dist

from megatape.parallel.mesh import Mesh


class Mpu:
    """The tensor axis is "model parallel" in DeepSpeed's terms."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def get_model_parallel_group(self) -> dist.ProcessGroup | None:
        return self.mesh["tensor"].group

    def get_model_parallel_rank(self) -> int:
        return self.mesh["tensor"].rank

    def get_model_parallel_world_size(self) -> int:
        return self.mesh["tensor"].size

    get_tensor_model_parallel_group = get_model_parallel_group
    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_world_size = get_model_parallel_world_size

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        return self.mesh["replicate"].group

    def get_data_parallel_rank(self) -> int:
        return self.mesh["replicate"].rank

    def get_data_parallel_world_size(self) -> int:
        return self.mesh["replicate"].size

    def get_data_parallel_group_ranks(self) -> list[int]:
        return dist.get_process_group_ranks(self.mesh["replicate"].group)

    def get_pipeline_model_parallel_world_size(self) -> int:
        return 1
