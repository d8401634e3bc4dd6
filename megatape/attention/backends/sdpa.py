"""Attention by PyTorch's scaled_dot_product_attention.

Shapes as in model/transformer.py.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from megatape.attention.backend import AttentionRequirements, DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.attention.rotating_backend import RotatingBackend, rotated_heads
from megatape.attention.rotation import PositionState
from megatape.attention.split_values import MAX_VALUE_WIDTH, attend_v_and_e
from megatape.utils.pytorch.torch_internals import attention_kernel, prefer_attention_kernels

# Size of the pieces in which GPU kernels load heads.
ALIGNMENT_BYTES = 16
# Maximum head size for which one padded call on a CPU is faster than `blocked` when moving the state. Relative time, forward
# and backward: 0.53 with 16 channels and 128 tokens, 0.89 with 32 and 256, but 1.18 with 64 and 512.
MAX_PADDED_HEAD_DIM = 32
# Compute capabilities of GPUs with cuDNN as the fastest kernels: Hopper and Blackwell in data centers.
CUDNN_CAPABILITIES = ((9, 0), (10, 0), (10, 3))


class Sdpa(RotatingBackend):
    """Plain attention, and attention over [v | e]. On a GPU, without document masks.

    On a CPU, the fused kernel does not support values wider than the keys, so queries and keys are padded with zeros. This
    takes more multiplications, but less time if heads are small.
    """

    def unsupported_reason(self, requirements: AttentionRequirements) -> str | None:
        head_dim = requirements.head_dim
        on_cpu = requirements.device_type == "cpu"
        on_gpu = requirements.device_type == "cuda"
        if requirements.bias != "none":
            return "would materialize the bias of all pairs of tokens"
        if requirements.averages_state and on_cpu and head_dim > MAX_PADDED_HEAD_DIM:
            return (
                "pads heads to the width of [v | e] on a CPU, which is slower than `blocked` beyond "
                f"{MAX_PADDED_HEAD_DIM} channels"
            )
        if requirements.compiled and requirements.masked:
            return "reads the lengths of documents, which a compiled block cannot"
        if on_gpu and requirements.deterministic:
            return "adds gradients in any order on a GPU, which training.deterministic excludes"
        if on_gpu and requirements.masked:
            return "would materialize the mask of all pairs of tokens, which data.mask_documents needs"
        if on_gpu and head_dim * requirements.dtype.itemsize % ALIGNMENT_BYTES:
            return (
                "would materialize the weights of all pairs of tokens: its kernels need heads of a multiple of "
                f"{ALIGNMENT_BYTES} bytes, and model.head_dim is {head_dim}"
            )
        return super().unsupported_reason(requirements)

    def kernel_name(self, requirements: AttentionRequirements, device: torch.device) -> str:
        head_dim = requirements.head_dim
        value_width = head_dim
        if requirements.averages_state and 2 * head_dim <= MAX_VALUE_WIDTH:
            value_width = 2 * head_dim
        q = torch.empty(1, 1, 128, head_dim, dtype=requirements.dtype, device=device).requires_grad_()
        v = torch.empty(1, 1, 128, value_width, dtype=requirements.dtype, device=device).requires_grad_()
        return attention_kernel(q, q, v).name.lower()

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: PositionState | None,
        bias: ScoreBias | None,
        document_starts: DocumentStarts,
        averages_state: bool,
        window: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute causal attention, see Backend. A state takes one call over [v | e], or several."""
        assert bias is None and window is None
        # A compiled layer need not set the order of kernels: the smoke test ran the backend before.
        if q.is_cuda and not torch.compiler.is_compiling():
            prefer_fast_kernels(q.device)

        q, k, e = rotated_heads(q, k, state, averages_state, self.rotation_by_kernel)
        scale = q.shape[-1] ** -0.5
        q = _padded(q, e)
        k = _padded(k, e)
        num_heads = q.shape[2]
        queries = q.transpose(1, 2)  # [B, H, N, R]
        keys = _for_each_query_head(k, num_heads)  # [B, H, N, R]

        lengths = _document_lengths(document_starts) if document_starts is not None else None

        def attend_to(values: Tensor) -> Tensor:
            by_head = _for_each_query_head(values, num_heads)  # [B, H, N, width]
            if lengths is None:
                return _sdpa(queries, keys, by_head, scale)
            return _attend_by_document(queries, keys, by_head, scale, lengths)

        return attend_v_and_e(v, e, attend_to)


def kernel_order(capability: tuple[int, int]) -> list[SDPBackend]:
    """Return PyTorch's kernels for GPUs of a compute capability, fastest first.

    Published measurements (docs/results/speed.md): cuDNN's kernels are 1.3 to 1.6 times as fast as FlashAttention-2's on
    Hopper, and slower elsewhere.
    """
    fastest = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    if capability in CUDNN_CAPABILITIES:
        fastest = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
    return [*fastest, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@cache
def prefer_fast_kernels(device: torch.device) -> None:
    """Set this process's order of kernels. PyTorch's own order depends on versions and environment variables."""
    prefer_attention_kernels(kernel_order(torch.cuda.get_device_capability(device)))


def _sdpa(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Compute causal attention, [B, H, N, ...] -> [B, N, H, ...]."""
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale).transpose(1, 2)


def _attend_by_document(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    lengths: list[list[int]],
) -> Tensor:
    """Compute causal attention in one call per document, [B, H, N, ...] -> [B, N, H, ...]. lengths: Tokens of each document.

    A mask would have N x N elements, and computing with it takes the time of all pairs of tokens.
    """
    samples = []
    for q, k, v, sizes in zip(queries.split(1), keys.split(1), values.split(1), lengths, strict=True):
        documents = zip(
            q.split(sizes, dim=2),
            k.split(sizes, dim=2),
            v.split(sizes, dim=2),
            strict=True,
        )
        samples.append(torch.cat([_sdpa(*document, scale) for document in documents], dim=1))
    return torch.cat(samples)


def _document_lengths(document_starts: Tensor) -> list[list[int]]:
    """Return the number of tokens per document, for each sample.

    Samples of fake and meta tensors, which have no values, count as one document.
    """
    num_samples, num_tokens = document_starts.shape
    if type(document_starts) is not Tensor or document_starts.is_meta:
        return [[num_tokens]] * num_samples
    lengths = []
    for starts in document_starts:
        _, counts = starts.unique_consecutive(return_counts=True)
        lengths.append(counts.tolist())
    return lengths


def _padded(heads: Tensor, e: Tensor | None) -> Tensor:
    """Pad queries or keys [B, N, heads, R] to [B, N, heads, R + W] when moving the state on a CPU."""
    if e is None or heads.device.type != "cpu":
        return heads
    return F.pad(heads, (0, e.shape[-1]))


def _for_each_query_head(heads: Tensor, num_heads: int) -> Tensor:
    """Repeat keys or values for the query heads sharing them, [B, N, L, width] -> [B, H, N, width].

    Not every kernel of scaled_dot_product_attention supports grouped queries.
    """
    group_size = num_heads // heads.shape[2]
    heads = heads.transpose(1, 2)
    if group_size == 1:
        return heads
    return heads.repeat_interleave(group_size, 1)
