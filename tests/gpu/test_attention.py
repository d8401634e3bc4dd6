"""Every attention backend on a GPU against the formula in float64: values and all gradients.

Only the blocked backend, which is plain PyTorch, supports a bias by pair. tests/gpu/test_model.py runs it.
"""

import pytest
import torch
from torch import Tensor

from megatape.attention.attend import get_backend
from megatape.attention.backend import AttentionRequirements, BiasKind
from megatape.attention.bias import DistanceBias
from megatape.registry import BACKENDS
from tests.gpu import GPU
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import relative_difference
from tests.helpers.models import attention, biased_attention
from tests.helpers.models.attention import initial_state, random_document_starts

pytestmark = [*GPU, pytest.mark.numerics]

VARIANTS = {"heads": (4, 4, False), "groups, documents": (6, 2, True)}  # query heads, key/value heads, masked documents
BIASES: dict[str, BiasKind] = {"plain": "none", "moving": "none", "distance bias": "distance"}
# Batch size in all tests
BATCH = 2
LENGTH = 300


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("attends", BIASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_the_formula(backend: str, attends: str, head_dim: int, dtype: torch.dtype, variant: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    heads, channels, masked = VARIANTS[variant]
    if reason := get_backend(backend).unsupported_reason(
        AttentionRequirements("cuda", attends == "moving", BIASES[attends], head_dim, dtype, masked)
    ):
        pytest.skip(f"{backend} {reason}")
    shape = (BATCH, LENGTH, heads, channels, head_dim)
    drawn = attention.inputs(shape) if attends == "moving" else biased_attention.inputs(shape, "distance")[0]
    drawn = drawn[: 3 if attends == "plain" else 4]
    rounded = [tensor.detach().to(dtype if tensor.dim() == 4 else torch.float32) for tensor in drawn]  # the bias is float32
    exact = [tensor.double().cuda().requires_grad_() for tensor in rounded]
    ours = [tensor.cuda().requires_grad_() for tensor in rounded]
    initial = initial_state(drawn[0][:, :, :1]).cuda()
    starts = random_document_starts(BATCH, LENGTH).cuda() if masked else None

    found = _found(backend, attends, ours, initial, starts)
    expected = _expected(attends, exact, initial, starts)
    for outputs in (found, expected):
        torch.stack([output.double().sin().sum() for output in outputs]).sum().backward()
    for pairs in (zip(found, expected, strict=True), zip(_gradients(ours), _gradients(exact), strict=True)):
        for number, (mine, theirs) in enumerate(pairs):
            assert relative_difference(mine, theirs, floor=1e-3) < bounds.GPU_KERNEL[dtype], number


def _found(backend: str, attends: str, inputs: list[Tensor], initial: Tensor, starts: Tensor | None) -> tuple[Tensor, ...]:
    q, k, v, *rest = inputs
    if attends == "moving":
        return attention.moving(backend, q, k, v, initial, rest[0], starts)
    content, _ = get_backend(backend).attend(q, k, v, None, DistanceBias(rest[0]) if rest else None, starts, False)
    return (content,)


def _expected(attends: str, inputs: list[Tensor], initial: Tensor, starts: Tensor | None) -> tuple[Tensor, ...]:
    q, k, v, *rest = inputs
    starts = torch.zeros(BATCH, LENGTH, dtype=torch.long, device=q.device) if starts is None else starts
    if attends == "moving":
        return attention.plain(q, k, v, initial.double() + rest[0], starts)
    index = torch.arange(LENGTH, device=q.device)
    by_distance = rest[0] if rest else q.new_zeros(q.shape[2], LENGTH)
    return (biased_attention.plain(q, k, v, by_distance[:, (index[:, None] - index).clamp(min=0)][None], starts),)


def _gradients(inputs: list[Tensor]) -> list[Tensor]:
    gradients = [tensor.grad for tensor in inputs if tensor.grad is not None]
    assert len(gradients) == len(inputs)
    return gradients
