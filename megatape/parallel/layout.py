"""How tensor-parallel ranks divide tokens, position channels and the vocabulary.

B batch, N tokens, L channels of width W, T tensor-parallel ranks. At T = 1 nothing is divided.
"""

from torch import Tensor

from megatape.parallel.collectives import all_to_all, every_rank, paired
from megatape.parallel.mesh import Axis


def own_tokens(x: Tensor, axis: Axis) -> Tensor:
    """This rank's share [B, N/T] of something [B, N] that all ranks hold and that takes no gradient."""
    return x if axis.size == 1 else x.chunk(axis.size, dim=1)[axis.rank]


def own_rows(ids: Tensor, num_rows: int, axis: Axis) -> tuple[Tensor, Tensor]:
    """The row of each id among this rank's `num_rows` rows of the vocabulary, and whether the id is there; row 0 if not."""
    rows = ids - axis.rank * num_rows
    held = (rows >= 0) & (rows < num_rows) & (ids >= 0)
    return rows.where(held, 0), held


def whole_vocabulary(logits: Tensor, vocab_size: int, axis: Axis) -> Tensor:
    """From each rank's logits [B, N, ceil(V / T)] to those of all ranks [B, N, V], without a gradient."""
    return every_rank(logits, axis).movedim(0, 2).flatten(2)[..., :vocab_size]


def divide_by_channels(e: Tensor, axis: Axis) -> Tensor:
    """From all channels of this rank's tokens [B, N/T, L, W] to all tokens of this rank's channels [B, N, L/T, W]."""
    return paired(e, axis, _to_channels, _to_tokens)


def divide_by_tokens(e: Tensor, axis: Axis) -> Tensor:
    """The inverse: from all tokens of this rank's channels [B, N, L/T, W] to all channels of its tokens [B, N/T, L, W]."""
    return paired(e, axis, _to_tokens, _to_channels)


def _to_channels(e: Tensor, axis: Axis) -> Tensor:
    sent = e.unflatten(2, (axis.size, -1)).permute(2, 0, 1, 3, 4).contiguous()  # [T, B, N/T, L/T, W]
    return all_to_all(sent, axis).transpose(0, 1).flatten(1, 2).contiguous()


def _to_tokens(e: Tensor, axis: Axis) -> Tensor:
    sent = e.unflatten(1, (axis.size, -1)).transpose(0, 1).contiguous()  # [T, B, N/T, L/T, W]
    return all_to_all(sent, axis).permute(1, 2, 0, 3, 4).flatten(2, 3).contiguous()
