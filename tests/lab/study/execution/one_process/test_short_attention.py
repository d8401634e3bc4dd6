"""Attention for short rows against the backends in `pretrain`."""

import pytest
import torch

from megatape.attention.attend import attend
from megatape.attention.rotation import PositionState
from megatape.lab.study.execution.one_process.short_attention import attend_short
from tests.helpers.checks.bounds import ATTENTION, assert_close

pytestmark = pytest.mark.numerics

DOCUMENTS = [[0, 0, 0, 3, 3, 5, 5, 5], [0] * 8]


@pytest.mark.parametrize("documents", [None, DOCUMENTS])
@pytest.mark.parametrize("averages_state", [False, True])
def test_short_rows(documents: list[list[int]] | None, averages_state: bool) -> None:
    """Short attention with grouped queries equals the blocked backend, noticing a wrong mask, scale or head order."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 8, 4, 6, generator=generator)
    k, v, delta = (torch.randn(2, 8, 2, 6, generator=generator) for _ in range(3))
    state = PositionState(torch.randn(2, 8, 1, 6, generator=generator), delta)
    document_starts = None
    if documents is not None:
        document_starts = torch.tensor(documents)

    ours = attend_short(q, k, v, state=state, document_starts=document_starts, averages_state=averages_state)
    theirs = attend(
        q,
        k,
        v,
        state=state,
        document_starts=document_starts,
        averages_state=averages_state,
        backends=("blocked",),
    )

    for part, expected in zip(ours, theirs, strict=True):
        if expected is None:
            assert part is None
            continue
        assert part is not None
        assert_close(part, expected, ATTENTION)
