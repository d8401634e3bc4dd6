"""Batches for one data-parallel rank.

Shape legend: b samples in a micro-batch, N tokens in a sample.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from megatape.config import NO_TARGET
from megatape.data.dataset import TokenDataset
from megatape.data.order import sample_hash, sample_index


@dataclass
class Batch:
    """int64 tensors, all [b, N].

    tokens     input ids
    targets    the next token of each, NO_TARGET where there is none
    positions  position of each token, the sample's random offset included
    starts     index in the sample of the first token of each token's document; None: one causal mask for the whole sample
    """

    tokens: Tensor
    targets: Tensor
    positions: Tensor
    starts: Tensor | None


class Loader:
    """The training batches of one rank, a pure function of how many samples have been consumed.

    global_batch_size  samples in an optimizer step, over all ranks and micro-batches
    micro_batch_size   samples in a forward pass of one rank (b)
    rank, world_size   among the data-parallel ranks; every world size that fits sees the same samples in every step
    mask_documents     True: a document sees and predicts only itself, and its positions start again
    max_offset         each sample's positions are shifted by a random amount in 0..max_offset
    """

    def __init__(
        self,
        dataset: TokenDataset,
        *,
        seed: int,
        global_batch_size: int,
        micro_batch_size: int,
        rank: int,
        world_size: int,
        mask_documents: bool = False,
        max_offset: int = 0,
    ):
        if min(global_batch_size, micro_batch_size, world_size) < 1:
            raise ValueError(
                f"global_batch_size ({global_batch_size}), micro_batch_size ({micro_batch_size}) and world_size "
                f"({world_size}) must be at least 1"
            )
        if global_batch_size % (micro_batch_size * world_size):
            raise ValueError(
                f"global_batch_size = micro_batch_size x data-parallel size x accumulation steps has no whole solution: "
                f"{global_batch_size} = {micro_batch_size} x {world_size} x "
                f"{global_batch_size / (micro_batch_size * world_size):.3g}: change the global or the micro batch size"
            )
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}, world_size {world_size}: rank must be in 0..{world_size - 1}")
        if max_offset < 0:
            raise ValueError(f"max_offset is {max_offset}: give 0 for no random offset, or more")
        self._dataset = dataset
        self._seed = seed
        self._global_batch_size = global_batch_size
        self._micro_batch_size = micro_batch_size
        self._rank = rank
        self._world_size = world_size
        self._mask_documents = mask_documents
        self._max_offset = max_offset

    def step(self, consumed: int) -> list[Batch]:
        """This rank's micro-batches of the step that begins after `consumed` samples of all ranks and epochs."""
        if consumed < 0:
            raise ValueError(f"consumed is {consumed}: the number of samples used so far cannot be negative")
        first = consumed + self._rank * self._micro_batch_size
        stride = self._world_size * self._micro_batch_size
        return [
            self._batch(range(begin, begin + self._micro_batch_size))
            for begin in range(first, consumed + self._global_batch_size, stride)
        ]

    def _batch(self, positions: range) -> Batch:
        num_samples = self._dataset.num_samples
        samples = [self._dataset.sample(sample_index(position, num_samples, self._seed)) for position in positions]
        offsets = [sample_hash(self._seed, position, self._max_offset + 1) for position in positions]
        return _make_batch(samples, offsets, self._dataset.eos_id, self._mask_documents)


def evaluation_batches(
    dataset: TokenDataset,
    batch_size: int,
    max_samples: int | None,
    rank: int,
    world_size: int,
    mask_documents: bool,
) -> Iterator[Batch]:
    """This rank's share of the first `max_samples` samples (None: all) in storage order, without random offsets.

    Every rank gets the same number of batches of `batch_size` samples, so that collectives stay matched; samples that only
    fill up have no targets at all.
    """
    total = dataset.num_samples if max_samples is None else min(max_samples, dataset.num_samples)
    stride = batch_size * world_size
    for begin in range(0, total, stride):
        first = begin + rank * batch_size
        wanted = range(first, first + batch_size)
        samples = [dataset.sample(index if index < total else 0) for index in wanted]
        batch = _make_batch(samples, [0] * batch_size, dataset.eos_id, mask_documents)
        batch.targets[max(total - first, 0) :] = NO_TARGET
        yield batch


def _make_batch(samples: Sequence[np.ndarray], offsets: Sequence[int], eos_id: int, mask_documents: bool) -> Batch:
    """Samples [N + 1] each, one offset each -> a batch."""
    stacked = np.stack(samples)  # [b, N + 1]
    tokens, targets = stacked[:, :-1].copy(), stacked[:, 1:].copy()
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    starts = None
    if mask_documents:
        ends = tokens == eos_id
        targets[ends] = NO_TARGET  # it would be the first token of the next document
        begins = np.zeros_like(ends)
        begins[:, 1:] = ends[:, :-1]
        starts = np.maximum.accumulate(np.where(begins, positions, 0), axis=1)
        positions = positions - starts
    positions = positions + np.asarray(offsets, np.int64)[:, None]
    return Batch(
        tokens=torch.from_numpy(tokens),
        targets=torch.from_numpy(targets),
        positions=torch.from_numpy(positions),
        starts=None if starts is None else torch.from_numpy(starts),
    )
