"""Ring attention on context-parallel ranks against blocked attention in one process."""

import itertools
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
from megatape.distributed.traffic import SHIFT, TrafficCounter
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.attention import initial_state, inputs, random_document_starts
from tests.helpers.processes.workers import run_workers

RANKS = 3  # More ranks than key heads
# B, N, H, L, R: chunks shorter than a block of rows, and longer ones, so that blocks have parts of two chunks
SHAPES = [(2, 24, 4, 2, 8), (1, 6 * (BLOCK + 12), 2, 1, 4)]
# Windows within a chunk, and spanning several chunks
WINDOWS = (3, BLOCK + 30)


@pytest.mark.numerics
def test_ring_equals_one_process(tmp_path: Path) -> None:
    """Results and gradients are equal, with and without a moving state, for documents ending in other ranks' chunks, and for
    windows within a chunk and beyond one.

    Fails if a row without keys on a rank is divided by an empty sum, if a rank masks by its local indices, or if it skips keys
    within the window.
    """
    assert run_workers("tests.attention.backends.test_blocked:check", RANKS, None, tmp_path) == [True] * RANKS


def check(_: Any, topology: Topology) -> bool:
    context = make_mesh(topology, {"context": RANKS})["context"]
    full: Any = itertools.product(SHAPES, (True, False), (False, True), (None,))
    windowed: Any = itertools.product(SHAPES, (True,), (False, True), WINDOWS)
    for shape, averages_state, masked, window in itertools.chain(full, windowed):
        document_starts = None
        if masked:
            document_starts = random_document_starts(*shape[:2])
        expected = [zigzag(part, context) for part in results(shape, SINGLE, averages_state, document_starts, window=window)]
        for min_block_rows in (BLOCK, 3 * BLOCK):
            ring = results(shape, context, averages_state, document_starts, min_block_rows=min_block_rows, window=window)
            for ours, theirs in zip(ring, expected, strict=True):
                assert_close(ours, theirs, bounds.RING, floor=1e-3, what=(shape, averages_state, masked, window))
    check_bytes(context)
    return True


def results(
    shape: tuple[int, ...],
    context: Axis,
    averages_state: bool,
    document_starts: Tensor | None,
    dtype: torch.dtype = torch.float32,
    min_block_rows: int = BLOCK,
    window: int | None = None,
) -> list[Tensor]:
    """Return outputs and gradients for this rank's tokens."""
    arguments = [zigzag(part.detach(), context).requires_grad_() for part in inputs(shape, dtype)]
    q, k, v, delta = arguments
    initial = zigzag(initial_state(inputs(shape)[3]), context)
    state = PositionState(initial)
    trained = [q, k, v]
    if averages_state:
        state = PositionState(initial, delta)
        trained = arguments
    backend = Blocked(context, min_block_rows)
    content, attended_state = backend.attend(q, k, v, state, None, zigzag(document_starts, context), averages_state, window)
    outputs = [content]
    if attended_state is not None:
        outputs.append(attended_state)
    gradients = torch.autograd.grad([output.float().sin().sum() for output in outputs], trained)
    return [*outputs, *gradients]


def check_bytes(context: Axis) -> None:
    """Check the bytes sent to the next rank: keys, values and a moving state forward, again backward, and their gradients."""
    shape = SHAPES[0]
    batch, length, _, channels, size = shape
    for averages_state, num_tensors in ((True, 3), (False, 2)):
        with TrafficCounter(context) as traffic:
            results(shape, context, averages_state, None, torch.bfloat16)
        tensor_bytes = batch * (length // RANKS) * channels * size * torch.bfloat16.itemsize
        hop_bytes = num_tensors * tensor_bytes
        pass_bytes = (RANKS - 1) * hop_bytes
        assert traffic.sent["context"] == {SHIFT: 3 * pass_bytes}
        assert traffic.overlapped["context"] == 3 * pass_bytes - hop_bytes
