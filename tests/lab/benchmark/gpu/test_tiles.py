"""Search for tiles of the attention kernels."""

import pytest
import torch

from megatape.lab.benchmark.gpu.tiles import CANDIDATES

pytest.importorskip("triton")
from megatape.attention.kernels import tile_sizes
from megatape.attention.kernels.tile_sizes import Tile, trial_tile


def test_trial_tile_of_one_kernel() -> None:
    x = torch.empty(1, 1, 1, 128, dtype=torch.bfloat16)
    kernels = [tile_sizes.forward_kernel, tile_sizes.queries_kernel, tile_sizes.keys_kernel]
    before = [tile_sizes.select_tile(kernel, x) for kernel in kernels]
    with trial_tile("keys_kernel", Tile(32, 64, 4, 2)):
        assert [tile_sizes.select_tile(kernel, x) for kernel in kernels] == [*before[:2], Tile(32, 64, 4, 2)]
    assert [tile_sizes.select_tile(kernel, x) for kernel in kernels] == before


def test_candidates_differ_from_the_tiles_in_use() -> None:
    used = {(kernel.__name__, size): tile_sizes.TILES[kernel, size] for kernel, size in tile_sizes.TILES}
    for case, candidates in CANDIDATES.items():
        assert len({used[case], *(Tile(*candidate) for candidate in candidates)}) == 1 + len(candidates), case
