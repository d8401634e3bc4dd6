"""Attention by PyTorch's scaled dot product attention.

Shapes as in model/transformer.py.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from megatape.attention.backend import WIDEST, AttentionRequirements, Backend, DocumentStarts, attend_v_and_e
from megatape.attention.bias import ScoreBias
from megatape.attention.fused_rotation import rotated_heads
from megatape.attention.rotation import PositionState
from megatape.utils.torch_internals import attention_kernel, prefer_attention_kernels

ALIGNMENT = 16  # bytes: kernels on a GPU load heads in such pieces
# Channels of a head up to which a CPU moves the state faster by one padded call than `blocked` does: its time, forward and
# backward, is 0.53 of that with 16 channels and 128 tokens, 0.89 with 32 and 256, but 1.18 with 64 and 512.
MOST_PADDED = 32


class Sdpa(Backend):
    """Plain attention and attention over [v | e], without masks on a GPU.

    On a CPU the fused kernel takes no values wider than the keys, so queries and keys are padded with zeros: more products, and
    less time in small heads.
    """

    def unsupported_reason(self, need: AttentionRequirements) -> str | None:
        if need.bias != "none":
            return "would materialize the bias of all pairs of tokens"
        if need.moves and need.device_type == "cpu" and need.head_dim > MOST_PADDED:
            return f"pads heads to the width of [v | e] on a CPU, which is slower than `blocked` beyond {MOST_PADDED} channels"
        if need.device_type == "cuda" and need.masked:
            return "would materialize the mask of all pairs of tokens, which data.mask_documents needs"
        if need.device_type == "cuda" and need.head_dim * need.dtype.itemsize % ALIGNMENT:
            return (
                f"would materialize the weights of all pairs of tokens: its kernels need heads of a multiple of {ALIGNMENT} "
                f"bytes, and model.head_dim is {need.head_dim}"
            )
        return super().unsupported_reason(need)

    def kernel_name(self, need: AttentionRequirements, device: torch.device) -> str:
        moves = need.moves and 2 * need.head_dim <= WIDEST
        widths = need.head_dim, (1 + moves) * need.head_dim
        q, v = (torch.empty(1, 1, 128, width, dtype=need.dtype, device=device).requires_grad_() for width in widths)
        return attention_kernel(q, q, v).name.lower()

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: PositionState | None,
        bias: ScoreBias | None,
        document_starts: DocumentStarts,
        move: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """A state takes one call over [v | e], or several."""
        assert bias is None
        if q.is_cuda and not torch.compiler.is_compiling():  # a run has tried its backend before it compiles
            prefer_fast_kernels(q.device)
        q, k, e = rotated_heads(q, k, state, move)
        scale = q.shape[-1] ** -0.5
        q = _padded(q, e)
        k = _padded(k, e)
        queries = q.transpose(1, 2)
        keys = _repeated(k, q)
        if document_starts is None:
            return attend_v_and_e(v, e, lambda values: _sdpa(queries, keys, _repeated(values, q), scale))
        lengths = _document_lengths(document_starts)
        return attend_v_and_e(v, e, lambda values: _by_document(queries, keys, _repeated(values, q), scale, lengths))


def _padded(heads: Tensor, e: Tensor | None) -> Tensor:
    """Queries or keys [B, N, H, R]; on a CPU [B, N, H, R + W] where e is moved."""
    return heads if e is None or heads.device.type != "cpu" else F.pad(heads, (0, e.shape[-1]))


def kernel_order(capability: tuple[int, int]) -> list[SDPBackend]:
    """PyTorch's kernels, the fastest first, on GPUs of this compute capability.

    Published: on Hopper cuDNN's are 1.3 to 1.6 times as fast as FlashAttention-2's (docs/benchmarks.md), elsewhere slower.
    """
    flash = SDPBackend.FLASH_ATTENTION
    cudnn = SDPBackend.CUDNN_ATTENTION
    fastest = [cudnn, flash] if capability in ((9, 0), (10, 0), (10, 3)) else [flash, cudnn]
    return [*fastest, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@cache
def prefer_fast_kernels(device: torch.device) -> None:
    """Set the order in this process; PyTorch's own depends on its version, on cuDNN's and on environment variables."""
    prefer_attention_kernels(kernel_order(torch.cuda.get_device_capability(device)))


def _sdpa(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """[B, N, H, .] from [B, H, N, .]; each token sees the earlier ones."""
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale).transpose(1, 2)


def _by_document(queries: Tensor, keys: Tensor, values: Tensor, scale: float, lengths: list[list[int]]) -> Tensor:
    """A call for each document of a sample, because a mask would have N x N elements and take the time of all of them."""
    outputs = []
    for *sample, sizes in zip(queries.split(1), keys.split(1), values.split(1), lengths, strict=True):
        documents = zip(*(x.split(sizes, dim=2) for x in sample), strict=True)
        outputs.append(torch.cat([_sdpa(q, k, v, scale) for q, k, v in documents], dim=1))
    return torch.cat(outputs)


def _document_lengths(document_starts: Tensor) -> list[list[int]]:
    """Tokens of the documents of each sample; on shapes alone, which hold no numbers, one document."""
    if type(document_starts) is not Tensor or document_starts.is_meta:
        return [[document_starts.shape[1]]] * len(document_starts)
    return [starts.unique_consecutive(return_counts=True)[1].tolist() for starts in document_starts]


def _repeated(heads: Tensor, q: Tensor) -> Tensor:
    """[B, N, L, .] -> [B, H, N, .], for each query head, because not every SDPA kernel supports grouped queries."""
    groups = q.shape[2] // heads.shape[2]
    heads = heads.transpose(1, 2)
    return heads.repeat_interleave(groups, 1) if groups > 1 else heads


def visible(document_starts: Tensor) -> Tensor:
    """Return [B, N, N], true where a query (row) may see a key: one of its document, not later."""
    index = torch.arange(document_starts.shape[1], device=document_starts.device)
    return (index <= index[:, None]) & (index >= document_starts[..., None])
