"""Record of a run's software, ranks and device, for readers of events.jsonl."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatape.distributed.topology import Topology
from megatape.software import package_version, versions
from megatape.training.reporting.hardware import device_name
from megatape.utils.values.rounding import divide_up


@dataclass(frozen=True)
class EnvironmentRecord:
    """Software, ranks, device and command of this process.

    Attributes:
        topology: All ranks.
        attention: Attention backend.
        sample_flops: FLOPs of the forward and backward pass per sample.
    """

    topology: Topology
    attention: str
    sample_flops: float

    def to_json(self) -> dict[str, Any]:
        """Return the record for events.jsonl."""
        return {
            "megatape": package_version(),
            "python/torch/deepspeed": versions(),
            "command": typed_command(),
            "ranks": self.topology.world_size,
            "hosts": divide_up(self.topology.world_size, self.topology.local_size),
            "device": device_name(),
            "attention": self.attention,
            "sample_flops": self.sample_flops,
        }


def typed_command() -> str:
    """Return the command line of this process, without the words of a launcher."""
    program, *words = sys.argv
    name = program
    if Path(program).name in ("megatape", "__main__.py"):
        name = "megatape"
    typed = [word for word in words if not word.startswith("--local_rank=")]
    return shlex.join([name, *typed])
