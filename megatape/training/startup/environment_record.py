"""Records the start of a run, for readers of its folder."""

from typing import Any

from megatape.distributed.topology import Topology
from megatape.training.reporting.hardware import device_name
from megatape.utils.command_line import typed_command
from megatape.utils.software import package_version, versions


def environment_record(topology: Topology, attention: str, sample_flops: float) -> dict[str, Any]:
    """Return the software, ranks and device of this process, and the command that started it.

    Args:
        topology: All ranks.
        attention: Attention backend of the run.
        sample_flops: FLOPs of the forward and backward pass over one sample.
    """
    return {
        "megatape": package_version(),
        "python/torch/deepspeed": versions(),
        "command": typed_command(),
        "ranks": topology.world_size,
        "hosts": -(-topology.world_size // topology.local_size),
        "device": device_name(),
        "attention": attention,
        "sample_flops": sample_flops,
    }
