"""Adapter from our mesh to DeepSpeed's parallelism interface."""

import torch.distributed as dist

from megatape.distributed.mesh import Mesh


class Mpu:
    """Mesh behind the interface that DeepSpeed calls "mpu" (model parallelism unit), as far as training uses it.

    DeepSpeed's "model parallel" ranks are our tensor axis. Context- and sequence-parallel ranks are data-parallel ranks to
    DeepSpeed, whose own sequence_parallel_size stays unused, so every stage sums the gradients over all of them.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def get_model_parallel_group(self) -> dist.ProcessGroup | None:
        return self.mesh["tensor"].group

    def get_model_parallel_rank(self) -> int:
        return self.mesh["tensor"].rank

    def get_model_parallel_world_size(self) -> int:
        return self.mesh["tensor"].size

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        return self.mesh["replicate"].group

    def get_data_parallel_world_size(self) -> int:
        return self.mesh["replicate"].size
