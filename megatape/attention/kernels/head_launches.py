"""Launching attention kernels on all heads: their arguments, grid, tile and FLOPs."""

from collections.abc import Mapping
from dataclasses import dataclass

import triton
from torch import Tensor

from megatape.attention.kernels.backward import keys_kernel, queries_kernel
from megatape.attention.kernels.distances import distances_kernel
from megatape.attention.kernels.forward import forward_kernel
from megatape.attention.kernels.tile_sizes import select_tile
from megatape.attention.kernels.tiles import width
from megatape.nn.kernels.launch import Argument, Kernel, launch


@dataclass(frozen=True)
class Products:
    """Number of matrix products per query-key pair.

    Attributes:
        content: Products for the content.
        state: Additional products for moving the state.
    """

    content: int
    state: int


PRODUCTS = {
    forward_kernel: Products(content=2, state=1),
    queries_kernel: Products(content=3, state=1),
    keys_kernel: Products(content=4, state=2),
    distances_kernel: Products(content=2, state=0),
}


@dataclass(frozen=True)
class HeadLaunches:
    """Launches of kernels that read the same tensors.

    Attributes:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        inputs: Tensors by the names of the kernels' arguments.
        num_pairs: Number of pairs of tokens with scores, including the masked half.
    """

    q: Tensor
    k: Tensor
    inputs: Mapping[str, Tensor | None]
    num_pairs: int

    def run(self, kernel: Kernel, **tensors: Tensor | None) -> None:
        """Run a kernel on every head.

        keys_kernel runs on key blocks, distances_kernel on diagonals of square tiles, the others on query blocks.

        Args:
            kernel: Kernel to run. It gets those of the inputs that are among its arguments.
            tensors: Its other tensors.
        """
        batch, length, heads, size = self.q.shape
        channels = self.k.shape[2]
        tile = select_tile(kernel, self.q)
        rows = tile.queries
        programs = heads
        if kernel is keys_kernel:
            rows = tile.keys
            programs = channels
        arguments: dict[str, Argument] = {name: x for name, x in self.inputs.items() if name in kernel.arg_names}
        arguments |= tensors
        arguments |= {
            # Sizes
            "length": length,
            "heads": heads,
            "scale": size**-0.5,
            # Compile-time sizes
            "GROUP": heads // channels,
            "SIZE": size,
            "WIDTH": width(size),
            "QUERIES": tile.queries,
            "KEYS": tile.keys,
        }
        grid = (triton.cdiv(length, rows), programs, batch)
        launch(kernel, grid, self._flops(kernel), tile.warps, tile.stages, arguments)

    def _flops(self, kernel: Kernel) -> int:
        """Return the FLOPs of a kernel's products. A multiply-add counts as two, and half of the scores are masked."""
        batch, _, heads, size = self.q.shape
        num_products = PRODUCTS[kernel].content
        if self.inputs["e"] is not None:
            num_products += PRODUCTS[kernel].state
        return num_products * batch * heads * self.num_pairs * size
