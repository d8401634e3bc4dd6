"""Search for tiles of the attention kernels."""

import pytest
import torch

from megatape.lab.benchmark.gpu.tiles import CANDIDATES, trial_tile

pytest.importorskip("triton")
from megatape.attention.kernels import attention


def test_trial_tile_of_one_kernel() -> None:
    x = torch.empty(1, 1, 1, 128, dtype=torch.bfloat16)
    kernels = [attention.forward_kernel, attention.queries_kernel, attention.keys_kernel]
    before = [attention.select_tile(kernel, x) for kernel in kernels]
    with trial_tile("keys_kernel", (32, 64, 4, 2)):
        assert [attention.select_tile(kernel, x) for kernel in kernels] == [*before[:2], attention.Tile(32, 64, 4, 2)]
    assert [attention.select_tile(kernel, x) for kernel in kernels] == before


def test_candidates_differ_from_the_tiles_in_use() -> None:
    used = {(kernel.__name__, size): attention.TILES[kernel, size] for kernel, size in attention.TILES}
    for case, candidates in CANDIDATES.items():
        assert len({used[case], *(attention.Tile(*candidate) for candidate in candidates)}) == 1 + len(candidates), case
