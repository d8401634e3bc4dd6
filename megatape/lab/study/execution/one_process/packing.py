"""Packing of short samples into fewer rows, so that a step computes less padding.

The samples of a row are documents that do not see each other (data.mask_documents), so losses and gradients stay the same.
"""

import numpy as np
import torch

from megatape.data.training.batches.batch import Batch
from megatape.encodings.encoding import Encoding
from megatape.nn.targets import IGNORE_INDEX, target_mask

# Maximum number of rows relative to the number of samples. With more, masking the documents costs more than padding.
MAX_SHARE = 0.85


def reads_positions_in_bias(encoding: Encoding) -> bool:
    """Whether an encoding computes its bias from position ids, as `fire` does: once for samples that share them."""
    if encoding.has_position_tensor or encoding.score_bias != "pair":
        return False
    return encoding.state(torch.zeros(1, 1, dtype=torch.long)) is not None


def packed(batch: Batch) -> Batch:
    """Return a batch with the same targets in fewer rows, or the batch itself if packing saves too little.

    Args:
        batch: Samples in host memory.
    """
    if batch.document_starts is not None:
        # The samples are already packed.
        return batch
    targets = batch.targets.numpy()
    num_samples, length = targets.shape
    # Tokens after the last target change no loss.
    ends = length - target_mask(targets)[:, ::-1].argmax(1)
    rows = _rows(ends.tolist(), length)
    if len(rows) > MAX_SHARE * num_samples:
        return batch

    # Source of each token, as an index into the flattened samples. Padding repeats the first token.
    sources = np.zeros((len(rows), length), np.int64)
    starts = np.empty((len(rows), length), np.int64)
    is_padding = np.ones((len(rows), length), np.bool_)
    for row, samples in enumerate(rows):
        begin = 0
        for sample in samples:
            end = begin + int(ends[sample])
            sources[row, begin:end] = np.arange(sample * length, sample * length + end - begin)
            starts[row, begin:end] = begin
            is_padding[row, begin:end] = False
            begin = end
        starts[row, begin:] = begin
    index = torch.from_numpy(sources)
    return Batch(
        tokens=batch.tokens.flatten()[index],
        targets=batch.targets.flatten()[index].masked_fill(torch.from_numpy(is_padding), IGNORE_INDEX),
        position_ids=batch.position_ids.reshape(-1)[index],
        document_starts=torch.from_numpy(starts),
    )


def _rows(lengths: list[int], room: int) -> list[list[int]]:
    """Distribute samples over rows, longest first, each into the first row with enough room.

    Args:
        lengths: Tokens of each sample.
        room: Tokens of a row.

    Returns:
        Indices of the samples in each row.
    """
    rows: list[list[int]] = []
    free: list[int] = []
    for sample in sorted(range(len(lengths)), key=lambda sample: -lengths[sample]):
        for row, left in enumerate(free):
            if left >= lengths[sample]:
                rows[row].append(sample)
                free[row] -= lengths[sample]
                break
        else:
            rows.append([sample])
            free.append(room - lengths[sample])
    return rows
