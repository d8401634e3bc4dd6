"""Ring attention of context-parallel ranks against blocked attention in one process."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.attention.backends.blocked import Blocked
from megatape.attention.blocked.row_blocks import BLOCK
from megatape.attention.rotation import PositionState
from megatape.distributed.layout import zigzag
from megatape.distributed.mesh import SINGLE, Axis, make_mesh
from megatape.distributed.topology import Topology
from megatape.distributed.traffic import SHIFT, CountTraffic
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.attention import initial_state, inputs, random_document_starts
from tests.helpers.processes.workers import run_workers

RANKS = 3  # more than the heads of keys
# B, N, H, L, R: chunks shorter than a block of rows and longer, of which a block has parts of both
SHAPES = [(2, 24, 4, 2, 8), (1, 6 * (BLOCK + 12), 2, 1, 4)]


@pytest.mark.numerics
def test_ring_equals_one_process(tmp_path: Path) -> None:
    """Results and gradients are equal, with and without a moving state, for documents ending in other ranks' chunks.

    Fails if a row without keys on a rank is divided by an empty sum, or if a rank masks by its local indices.
    """
    assert run_workers("tests.attention.backends.test_blocked:check", RANKS, None, tmp_path) == [True] * RANKS


def check(_: Any, topology: Topology) -> bool:
    context = make_mesh(topology, {"context": RANKS})["context"]
    for shape in SHAPES:
        for moves_state in (True, False):
            for mask in (None, random_document_starts(*shape[:2])):
                alone = [zigzag(part, context) for part in results(shape, SINGLE, moves_state, mask)]
                for block in (BLOCK, 3 * BLOCK):
                    ring = results(shape, context, moves_state, mask, min_block_rows=block)
                    for found, expected in zip(ring, alone, strict=True):
                        assert_close(found, expected, bounds.RING, floor=1e-3, what=(shape, moves_state, mask is not None))
    check_bytes(context)
    return True


def results(
    shape: tuple[int, ...],
    context: Axis,
    moves_state: bool,
    mask: Tensor | None,
    dtype: torch.dtype = torch.float32,
    min_block_rows: int = BLOCK,
) -> list[Tensor]:
    """Return the outputs and gradients of this rank's tokens."""
    given = [zigzag(part.detach(), context).requires_grad_() for part in inputs(shape, dtype)]
    q, k, v, delta = given
    state = PositionState(zigzag(initial_state(inputs(shape)[3]), context), delta if moves_state else None)
    found = Blocked(context, min_block_rows).attend(q, k, v, state, None, zigzag(mask, context), moves_state)
    outputs = [part for part in found if part is not None]
    gradients = torch.autograd.grad([part.float().sin().sum() for part in outputs], given[: 4 if moves_state else 3])
    return [*outputs, *gradients]


def check_bytes(context: Axis) -> None:
    """Check the bytes sent to the next rank: keys, values and a moving state forward, again backward, and their gradients."""
    shape = SHAPES[0]
    batch, length, _, channels, size = shape
    for moves_state in (True, False):
        with CountTraffic(context) as traffic:
            results(shape, context, moves_state, None, torch.bfloat16)
        part = prod((batch, length // RANKS, channels, size)) * torch.bfloat16.itemsize
        one_pass = (RANKS - 1) * (3 if moves_state else 2) * part
        assert traffic.sent["context"] == {SHIFT: 3 * one_pass}
        assert traffic.overlapped["context"] == 3 * one_pass - one_pass // (RANKS - 1)
