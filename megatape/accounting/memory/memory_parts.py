"""A rank's memory by part, on its device and in host memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class MemoryPart(Enum):
    """Part of a rank's memory. Values are the names in reports."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    MASTER_WEIGHTS = "master weights"
    MOMENTS = "moments"
    # Copy of the gradients as one tensor, for DeepSpeed's optimizer.
    FLATTENED_GRADIENTS = "flattened gradients"
    MOVING_AVERAGE = "moving average"
    # Weights that stage 3 has gathered for the next uses.
    GATHERED_WEIGHTS = "gathered weights"
    # Gradients waiting to be reduced, and their copy in transit.
    GRADIENT_BUCKETS = "gradient buckets"
    # Copy of the training state for writing checkpoints in the background.
    CHECKPOINT_COPIES = "copies for checkpoints"
    ACTIVATIONS = "activations"
    # Activations that a model without positions would not save.
    POSITION_ENCODING = "position encoding"
    # Peak of temporary tensors in the backward pass and the loss.
    LARGEST_TEMPORARY = "largest temporary"
    # Gradients in the memory of recorded passes, and temporary tensors of evaluations, which cannot use that memory.
    CUDA_GRAPHS = "CUDA graphs"


@dataclass(frozen=True)
class Memory:
    """A rank's bytes by part, without parts that a run does not have.

    Attributes:
        device: Bytes on the device.
        host: Bytes in host memory, for offloading and background checkpoints.
    """

    device: Mapping[MemoryPart, float]
    host: Mapping[MemoryPart, float]

    @property
    def device_total(self) -> float:
        """All bytes on the device."""
        return sum(self.device.values())

    @property
    def host_total(self) -> float:
        """All bytes in host memory."""
        return sum(self.host.values())

    def total_of(self, part: MemoryPart) -> float:
        """Return the bytes of a part on device and host, 0 if the run does not have it."""
        return self.device.get(part, 0.0) + self.host.get(part, 0.0)
