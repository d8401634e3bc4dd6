"""Memory of a rank, by part and by the memory that holds the part."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class MemoryPart(Enum):
    """Part of a rank's memory. The values are the names of the parts in reports."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    MASTER_WEIGHTS = "master weights"
    MOMENTS = "moments"
    # Copy of the gradients as one tensor, which DeepSpeed's optimizer reads.
    FLATTENED_GRADIENTS = "flattened gradients"
    MOVING_AVERAGE = "moving average"
    # Weights that stage 3 has gathered for its next uses.
    GATHERED_WEIGHTS = "gathered weights"
    # Gradients that wait to be reduced, and their copy in transit.
    GRADIENT_BUCKETS = "gradient buckets"
    # Copy of the training state that a checkpoint is written from in the background.
    CHECKPOINT_COPIES = "copies for checkpoints"
    ACTIVATIONS = "activations"
    # Activations that a model without positions would not save.
    POSITION_ENCODING = "position encoding"
    # Peak of temporary tensors in the backward pass and the loss.
    LARGEST_TEMPORARY = "largest temporary"


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank by part. Parts that a run does not have are missing.

    Attributes:
        device: Bytes on the device.
        host: Bytes in host memory, with offloading and for checkpoints in the background.
    """

    device: Mapping[MemoryPart, float]
    host: Mapping[MemoryPart, float]

    @property
    def device_total(self) -> float:
        """Bytes of all parts on the device."""
        return sum(self.device.values())

    @property
    def host_total(self) -> float:
        """Bytes of all parts in host memory."""
        return sum(self.host.values())

    def total_of(self, part: MemoryPart) -> float:
        """Return the bytes of a part in both memories, 0 if the run does not have it."""
        return self.device.get(part, 0.0) + self.host.get(part, 0.0)
