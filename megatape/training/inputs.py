"""Moving batches to the device."""

import torch

from megatape.data.training.batch import Batch
from megatape.zero.engine import Inputs


def on_device(batch: Batch, device: torch.device) -> Inputs:
    """Return the batch on a device, without waiting for the copy."""
    return vars(batch.mapped(lambda tensor: tensor.to(device, non_blocking=True)))
