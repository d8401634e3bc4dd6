"""Searching tiles for the attention kernels."""

import pytest
import torch

from megatape.lab.benchmark.gpu.parts.tiles import CANDIDATES

pytest.importorskip("triton")
from megatape.attention.kernels import tile_sizes
from megatape.attention.kernels.tile_sizes import Tile, trial_tile


def test_trial_tile_of_one_kernel() -> None:
    x = torch.empty(1, 1, 1, 128, dtype=torch.bfloat16)
    kernels = [tile_sizes.forward_kernel, tile_sizes.queries_kernel, tile_sizes.keys_kernel]

    def selected() -> list[Tile]:
        return [tile_sizes.select_tile(kernel, x) for kernel in kernels]

    forward, queries, keys = selected()

    with trial_tile("keys_kernel", Tile(32, 64, 4, 2)):
        assert selected() == [forward, queries, Tile(32, 64, 4, 2)]
    assert selected() == [forward, queries, keys]


def test_candidates_differ_from_the_tiles_in_use() -> None:
    tiles_in_use = {(kernel.__name__, size): tile for (kernel, size), tile in tile_sizes.TILES.items()}
    for case, candidates in CANDIDATES.items():
        tiles = [Tile(*candidate) for candidate in candidates]
        assert len(set(tiles)) == len(tiles), case
        assert tiles_in_use[case] not in tiles, case
