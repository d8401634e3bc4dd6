"""Packing short samples into fewer rows."""

import numpy as np
import torch

from megatape.data.training.batches.batch import Batch, make_batch
from megatape.data.training.datasets.dataset import SampleRows
from megatape.lab.study.execution.one_process.packing import packed
from megatape.nn.targets import IGNORE_INDEX

LENGTH = 6
EOS = 99


def batch_of(*lengths: int) -> Batch:
    """Return a batch of samples ending with a target at these lengths, each with its own positions."""
    samples = SampleRows.empty(len(lengths), LENGTH, has_document_starts=False)
    samples.tokens[:] = EOS
    samples.targets[:] = IGNORE_INDEX
    positions = []
    for number, length in enumerate(lengths):
        samples.tokens[number, :length] = 10 * number + np.arange(length)
        samples.targets[number, length - 1] = 7
        positions.append(100 * number + np.arange(LENGTH))
    return make_batch(samples, np.stack(positions))


def test_every_token_before_a_last_target_is_in_a_row() -> None:
    batch = packed(batch_of(4, 2, 6, 1, 3))

    assert batch.tokens[:, :6].tolist() == [
        [20, 21, 22, 23, 24, 25],
        [0, 1, 2, 3, 10, 11],
        [40, 41, 42, 30, 0, 0],
    ]
    assert batch.position_ids[1].tolist() == [0, 1, 2, 3, 100, 101]
    assert batch.document_starts is not None
    assert batch.document_starts.tolist() == [[0] * 6, [0, 0, 0, 0, 4, 4], [0, 0, 0, 3, 4, 4]]
    assert (batch.targets != IGNORE_INDEX).nonzero().tolist() == [[0, 5], [1, 3], [1, 5], [2, 2], [2, 3]]


def test_samples_with_little_padding_stay() -> None:
    batch = batch_of(6, 5, 6, 6)
    assert packed(batch) is batch


def test_shared_positions_are_packed() -> None:
    """Samples sharing positions have one row of them in memory."""
    batch = batch_of(2, 2, 2)
    batch.position_ids = torch.arange(LENGTH)[None].expand(3, LENGTH)
    assert packed(batch).position_ids.tolist() == [[0, 1, 0, 1, 0, 1]]
