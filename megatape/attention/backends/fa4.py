"""Attention by FlashAttention-4 on Hopper GPUs, in one pass over content and position state.

The computation is in attention/fa4/, and needs the package flash-attn-4. Shapes as in model/transformer.py.
"""

from typing import ClassVar

import torch
from torch import Tensor

from megatape.attention.backend import AttentionRequirements, DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.attention.fa4 import package
from megatape.attention.fa4.package import BLACKWELL, HOPPER
from megatape.attention.fa4.tiles import LONG, WIDE_HEAD_DIMS
from megatape.attention.rotating_backend import RotatingBackend, rotated_heads
from megatape.attention.rotation import PositionState
from megatape.attention.split_values import attend_v_and_e

DTYPES = (torch.bfloat16, torch.float16)
# The package loads values and queries in multiples of this width.
WIDTH_MULTIPLE = 8
MAX_WIDTH = {HOPPER: 256, **dict.fromkeys(BLACKWELL, 128)}
# Head sizes at which it was faster than other backends on an H200.
FAST_HEAD_DIMS = (64, 128)


class FlashAttention4(RotatingBackend):
    """Attention by FlashAttention-4, with packed documents, windows and grouped queries.

    Supports plain attention and moving the state, without a bias. For a state, keys and values of grouped queries are repeated.

    Unless it is deterministic, it adds the gradients of queries in any order, so they differ by rounding each time.
    """

    has_windows = True
    # The kernels for samples longer than LONG are tested, too.
    smoke_test_tokens: ClassVar[int] = LONG + 256

    def unsupported_reason(self, requirements: AttentionRequirements) -> str | None:
        if requirements.bias != "none":
            return "adds no bias to the scores"
        if requirements.device_type != "cuda":
            return f"is compiled for GPUs, and the device is {requirements.device_type!r}"
        if requirements.dtype not in DTYPES:
            return f"computes in bfloat16 or float16, not in {requirements.dtype}"
        problem = package.version_problem() or _size_problem(requirements, package.compute_capability())
        if problem is not None:
            return problem
        return super().unsupported_reason(requirements)

    def is_preferred_for(self, requirements: AttentionRequirements) -> bool:
        """Whether it is faster than cuDNN and our own kernels, by measurements of equal numbers of query and key/value heads.

        Documents, windows and the deterministic mode were not measured.
        """
        is_measured = (
            requirements.dtype == torch.bfloat16
            and requirements.head_dim in FAST_HEAD_DIMS
            and not requirements.masked
            and not requirements.windowed
            and not requirements.grouped
            and not requirements.deterministic
        )
        if not is_measured or self.unsupported_reason(requirements) is not None:
            return False
        return package.compute_capability() == HOPPER

    def missed_reason(self, requirements: AttentionRequirements) -> str | None:
        if requirements.device_type != "cuda" or package.installed_version() is None:
            return None
        return self.unsupported_reason(requirements)

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
        """Compute causal attention, see Backend.

        Takes a single pass over [v | e]. Some ablations have an e wider than the heads: then queries and keys are rotated
        beforehand, and e is split into parts as wide as a head, which take a pass each.
        """
        from megatape.attention.fa4.operators import Options, fa4_attention

        assert bias is None
        head_dim = q.shape[-1]
        if state is None or (state.initial is not None and state.initial.shape[-1] == head_dim):
            options = Options(
                averages_state=averages_state,
                window=window,
                rotation_by_kernel=self.rotation_by_kernel,
                deterministic=self.deterministic,
            )
            out = fa4_attention(q, k, v, state, document_starts, options)
            if not averages_state:
                return out, None
            content, attended_state = out.split([v.shape[-1], head_dim], dim=-1)
            return content, attended_state

        q, k, e = rotated_heads(q, k, state, averages_state, by_kernel=False)
        plain = Options(averages_state=False, window=window, rotation_by_kernel=False, deterministic=self.deterministic)

        def attend_to(values: Tensor) -> Tensor:
            return fa4_attention(q, k, values, None, document_starts, plain)

        return attend_v_and_e(v, e, attend_to, max_width=head_dim)


def _size_problem(requirements: AttentionRequirements, capability: tuple[int, int] | None) -> str | None:
    """Return the reason why the package has no kernels for a layer, or None if it has.

    Args:
        requirements: Requirements of the layer.
        capability: Compute capability of the GPU, or None if this machine has no GPU and plans for another one: then any GPU
            with kernels counts.
    """
    head_dim = requirements.head_dim
    if capability is not None and capability not in MAX_WIDTH:
        major, minor = capability
        return f"has kernels for GPUs with compute capability 9.0, 10.0 or 10.3, and this one has {major}.{minor}"
    max_width = max(MAX_WIDTH.values()) if capability is None else MAX_WIDTH[capability]
    if head_dim % WIDTH_MULTIPLE:
        return f"needs a head_dim that is a multiple of {WIDTH_MULTIPLE}, and model.head_dim is {head_dim}"
    value_width = head_dim
    if requirements.averages_state:
        value_width = 2 * head_dim
        if head_dim not in WIDE_HEAD_DIMS:
            return f"has tiles for a position state with heads of {WIDE_HEAD_DIMS}, and model.head_dim is {head_dim}"
    if value_width > max_width:
        return (
            f"computes values of at most {max_width} numbers on this GPU, and has {value_width} with a head_dim of {head_dim}"
        )
    return None
