"""Counts the bytes that autograd saves for the backward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from megatape.model.transformer import Transformer
from megatape.utils.pytorch.torch_internals import storage_id


@dataclass
class Saved:
    """Distinct storages that autograd has saved, by identity."""

    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Total bytes."""
        return sum(storage.nbytes() for storage in self.storages.values())


@contextmanager
def record_saved(exclude: Sequence[Tensor]) -> Iterator[Saved]:
    """Record every storage that autograd saves inside the block, except those of `exclude`."""
    saved = Saved()
    excluded = {storage_id(tensor) for tensor in exclude}

    def pack(tensor: Tensor) -> Tensor:
        identity = storage_id(tensor)
        if identity not in excluded:
            saved.storages[identity] = tensor.untyped_storage()
        # An output would hold its own node, and the node the output: neither would ever be freed.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


def saved_bytes(model: Transformer, batch_size: int, length: int, masked: bool = False) -> int:
    """Return the bytes that autograd saves in one micro-batch's forward pass, without weights.

    The forward pass runs on the model's device. Under FakeTensorMode it needs neither memory nor time, with a CPU's attention.

    Args:
        model: Model to run.
        batch_size: Samples.
        length: Tokens per sample.
        masked: Whether samples have document masks.
    """
    parameters = list(model.parameters())
    device = parameters[0].device
    tokens = torch.zeros(batch_size, length, dtype=torch.long, device=device)
    position_ids = torch.arange(length, device=device).expand(batch_size, -1)
    document_starts = tokens if masked else None
    with record_saved(exclude=parameters) as saved:
        loss = model(tokens, position_ids, document_starts=document_starts, targets=tokens, dropout_seeds=tokens[:, 0])
    del loss
    return saved.bytes
