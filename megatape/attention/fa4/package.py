"""The package flash-attn-4. No other file names its functions, which are private.

Shapes: B samples of N tokens with H query heads and L key/value heads of R numbers, and values of V numbers. Packed documents
are one row of B N tokens, without the dimension B.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from megatape.attention.fa4.tiles import BackwardTile, ForwardTile
from megatape.utils.files.project_files import install_command

PACKAGE = "flash-attn-4"
# The only version that was tried. Others may choose or pass tiles in another way.
TRIED_VERSION = "4.0.0b36"

HOPPER = (9, 0)
# Data-center Blackwell GPUs. Others have too little shared memory for the package's kernels.
BLACKWELL = ((10, 0), (10, 3))


@dataclass(frozen=True)
class Scope:
    """Pairs of queries and keys that are computed, and how.

    Attributes:
        length: Tokens per sample N.
        window: Number of tokens that a token attends to, or None for all earlier ones.
        document_ends: Cumulative lengths of the packed documents, int32 [documents + 1], beginning with 0, or None if each
            sample is one document.
        deterministic: Whether to add the gradients of the queries in a fixed order.
    """

    length: int
    window: int | None
    document_ends: Tensor | None
    deterministic: bool


def installed_version() -> str | None:
    """Return the version of the installed package, or None if it is not installed."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return None


def version_problem() -> str | None:
    """Return the reason why the installed package cannot be used, or None if it can."""
    installed = installed_version()
    if installed is None:
        return f"needs the package {PACKAGE}, which is not installed ({install_command('fa4')})"
    if installed != TRIED_VERSION:
        return f"was only tried with {PACKAGE} {TRIED_VERSION}, and {installed} is installed"
    return None


def compute_capability() -> tuple[int, int] | None:
    """Return the compute capability of this process's GPU, or None without one."""
    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_capability()


def forward(q: Tensor, k: Tensor, v: Tensor, scope: Scope, tile: ForwardTile | None) -> tuple[Tensor, Tensor]:
    """Compute causal attention.

    Args:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        v: Values [B, N, L, V].
        scope: Pairs of queries and keys.
        tile: Tile of a Hopper GPU, or None for the package's choice.

    Returns:
        A v [B, N, H, V], and the logarithm of each query's sum of exponentials, float32 [B, H, N], or [H, B N] for documents.
    """
    options: dict[str, Any] = {}
    if tile is not None:
        options = {"tile_mn": (tile.queries, tile.keys), "mma_pv_is_rs": True, "intra_wg_overlap": True}
    out, log_sum, *_ = _interface()._flash_attn_fwd(q, k, v, return_lse=True, **_arguments(q, scope), **options)
    return out, log_sum


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    d_out: Tensor,
    log_sum: Tensor,
    scope: Scope,
    tile: BackwardTile | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of attention.

    Args:
        q: Queries, as in `forward`.
        k: Keys.
        v: Values.
        out: Result of `forward`.
        d_out: Gradient of `out`.
        log_sum: Logarithms from `forward`.
        scope: Pairs of queries and keys.
        tile: Tile of a Hopper GPU, or None for the package's choice.

    Returns:
        Gradients of queries, keys and values.
    """
    interface = _interface()
    arguments = _arguments(q, scope)
    with _backward_tile(interface, tile):
        d_q, d_k, d_v = interface._flash_attn_bwd(q, k, v, out, d_out, log_sum, deterministic=scope.deterministic, **arguments)
    return d_q, d_k, d_v


def _arguments(q: Tensor, scope: Scope) -> dict[str, Any]:
    """Return the arguments that both passes share."""
    arguments: dict[str, Any] = {"softmax_scale": q.shape[-1] ** -0.5, "causal": True}
    if scope.window is not None:
        # The package does not count the token itself.
        arguments["window_size_left"] = scope.window - 1
    if scope.document_ends is not None:
        arguments |= {
            "cu_seqlens_q": scope.document_ends,
            "cu_seqlens_k": scope.document_ends,
            "max_seqlen_q": scope.length,
            "max_seqlen_k": scope.length,
        }
    return arguments


def _interface() -> Any:
    """Return the package's module, importing it at the first call, which takes seconds."""
    # Share compiled kernels with other processes of this user: ranks, and the child process of the smoke test.
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    return import_module("flash_attn.cute.interface")


@contextmanager
def _backward_tile(interface: Any, tile: BackwardTile | None) -> Iterator[None]:
    """Make the package's backward pass use a tile inside the block. On Hopper it has no argument for it."""
    if tile is None:
        yield
        return
    config = interface.BwdConfig(**tile)
    choose_tile = interface._tile_size_bwd_sm90
    interface._tile_size_bwd_sm90 = lambda *sizes, **options: config
    try:
        yield
    finally:
        interface._tile_size_bwd_sm90 = choose_tile
