"""Stand-in for the package flash-attn-4, which needs a GPU: its private functions in plain PyTorch.

tests/kernels/test_fa4.py compares the signatures with those of the real package. The functions compute in the dtype of their
arguments, and check what the package requires of them.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from megatape.attention.fa4.package import TRIED_VERSION


@dataclass(frozen=True)
class BwdConfig:
    """Tile sizes for the backward pass on Hopper, with the package's field names."""

    m_block_size: int
    n_block_size: int
    num_stages_Q: int
    num_stages_dO: int
    num_stages_PdS: int
    SdP_swapAB: bool
    dKV_swapAB: bool
    dQ_swapAB: bool
    AtomLayoutMSdP: int
    AtomLayoutNdKV: int
    AtomLayoutMdQ: int
    num_wg: int = 2
    dQ_single_wg: bool = False


class Interface(ModuleType):
    """Stand-in for the module flash_attn.cute.interface.

    Attributes:
        BwdConfig: Class for backward tiles.
        forward_options: Tile, `mma_pv_is_rs` and `intra_wg_overlap` in each forward pass.
        backward_tiles: Tile in each backward pass, or None if the package chose it.
        deterministic: Argument `deterministic` in each backward pass.
    """

    def __init__(self) -> None:
        super().__init__("flash_attn.cute.interface")
        self.BwdConfig = BwdConfig
        self.forward_options: list[tuple[object, ...]] = []
        self.backward_tiles: list[BwdConfig | None] = []
        self.deterministic: list[bool] = []

    @staticmethod
    def _tile_size_bwd_sm90(
        head_dim: int, head_dim_v: int, causal: bool, local: bool, sparse_block_size_q: int | None = None
    ) -> BwdConfig | None:
        return None

    def _flash_attn_fwd(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size_left: int | None = None,
        tile_mn: tuple[int, int] | None = None,
        mma_pv_is_rs: bool | None = None,
        intra_wg_overlap: bool | None = None,
        return_lse: bool = False,
    ) -> tuple[Tensor | None, ...]:
        assert causal and return_lse and softmax_scale is not None
        _check_documents(q, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        self.forward_options.append((tile_mn, mma_pv_is_rs, intra_wg_overlap))
        scores = _scores(_by_head(q), _by_head(k), softmax_scale, cu_seqlens_q, window_size_left)
        values = _repeated(_by_head(v), scores.shape[-3])
        out = (scores.softmax(-1) @ values).movedim(-3, -2).contiguous()
        return out, scores.logsumexp(-1).float(), None, None, None

    def _flash_attn_bwd(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        dout: Tensor,
        lse: Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size_left: int | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        deterministic: bool = False,
    ) -> tuple[Tensor, ...]:
        assert causal and softmax_scale is not None
        assert out.shape == dout.shape == (*q.shape[:-1], v.shape[-1])
        group_size = q.shape[-2] // k.shape[-2]
        assert group_size == 1 or q.shape[-1] == v.shape[-1], "GQA backward requires head_dim == head_dim_v"
        _check_documents(q, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        is_local = window_size_left is not None
        self.backward_tiles.append(self._tile_size_bwd_sm90(q.shape[-1], v.shape[-1], not is_local, is_local))
        self.deterministic.append(deterministic)

        queries = _by_head(q)
        num_heads = queries.shape[-3]
        keys = _repeated(_by_head(k), num_heads)
        values = _repeated(_by_head(v), num_heads)
        d_out = _by_head(dout)
        scores = _scores(queries, keys, softmax_scale, cu_seqlens_q, window_size_left)
        weights = (scores - lse[..., None].to(q.dtype)).exp()
        row_sums = (d_out * _by_head(out)).sum(-1, keepdim=True)
        d_scores = weights * (d_out @ values.mT - row_sums) * softmax_scale
        d_queries = d_scores @ keys
        d_keys = _summed(d_scores.mT @ queries, group_size)
        d_values = _summed(weights.mT @ d_out, group_size)
        return tuple(gradient.movedim(-3, -2).contiguous() for gradient in (d_queries, d_keys, d_values))


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str = TRIED_VERSION) -> Interface:
    """Install the stand-in as the package for one test, and return its module.

    Args:
        monkeypatch: The test's fixture.
        folder: Empty folder for the package's metadata.
        version: Version of the package.
    """
    metadata = folder / f"flash_attn_4-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: flash-attn-4\nVersion: {version}\n")
    monkeypatch.syspath_prepend(folder)
    interface = Interface()
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    return interface


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None) -> None:
    """Make torch report a GPU with a compute capability, or none, for one test."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)


def _check_documents(
    q: Tensor, ends: Tensor | None, ends_of_keys: Tensor | None, longest: int | None, longest_of_keys: int | None
) -> None:
    """Check the arguments about packed documents."""
    assert ends is ends_of_keys and longest == longest_of_keys
    if ends is None:
        assert q.dim() == 4 and longest is None
        return
    assert q.dim() == 3 and longest is not None
    assert ends.dtype == torch.int32 and ends[0] == 0 and ends[-1] == len(q)
    lengths = ends.diff()
    assert 0 < lengths.min() and lengths.max() <= longest


def _by_head(tensor: Tensor) -> Tensor:
    """Return [..., N, heads, width] as [..., heads, N, width]."""
    return tensor.movedim(-2, -3)


def _repeated(tensor: Tensor, num_heads: int) -> Tensor:
    """Repeat keys or values [..., L, N, width] for the query heads."""
    return tensor.repeat_interleave(num_heads // tensor.shape[-3], -3)


def _summed(gradient: Tensor, group_size: int) -> Tensor:
    """Sum gradients [..., H, N, width] over the heads in a group, which repeat keys or values."""
    return gradient.unflatten(-3, (-1, group_size)).sum(-3)


def _scores(queries: Tensor, keys: Tensor, scale: float, ends: Tensor | None, window_size_left: int | None) -> Tensor:
    """Return scaled scores [..., H, N, N], minus infinity for masked pairs."""
    keys = _repeated(keys, queries.shape[-3])
    length = queries.shape[-2]
    index = torch.arange(length)
    hidden = index > index[:, None]
    if window_size_left is not None:
        hidden = hidden | (index < index[:, None] - window_size_left)
    if ends is not None:
        document = torch.searchsorted(ends[1:], index, right=True)
        hidden = hidden | (document != document[:, None])
    return (scale * queries @ keys.mT).masked_fill(hidden, -math.inf)
