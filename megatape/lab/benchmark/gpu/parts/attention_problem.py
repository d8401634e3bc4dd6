"""Attention with random inputs: outputs and gradients of any backend, and exact ones in float64.

B batch, N tokens, H heads, R head size, W state size.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from megatape.attention.attend import attend, backends_by_priority
from megatape.attention.bias import DistanceBias
from megatape.attention.rotation import PositionState, rotate
from megatape.lab.benchmark.models.shapes import ModelShape, compute_dtype, position_state

# Rotary attention, rotary attention with a moving position tensor, and attention with a distance bias.
AttentionKind = Literal["plain", "moving", "distance bias"]

# Documents per sequence, if there are several.
NUM_DOCUMENTS = 5


class AttentionVariant(NamedTuple):
    """A backend, with a kernel if one is selected.

    Attributes:
        label: Name in keys and tables.
        backend: Backend name.
        context: Returns a context selecting the kernel.
        deterministic: Whether the same inputs must give the same gradients, bit for bit.
    """

    label: str
    backend: str
    context: Callable[[], AbstractContextManager[object]] = nullcontext
    deterministic: bool = False


# Rotary attention with the kernel that PyTorch chooses.
BASELINE = AttentionVariant("sdpa", "sdpa")


class AttentionProblem:
    """Attention inputs, output gradients, and exact results.

    Attributes:
        inputs: Queries, keys and values, then the position update or the distance bias.
        state: Encoding state [B, N, 1, W].
        document_starts: First token in each token's document [B, N], or None.
        d_outputs: Output gradients.
    """

    def __init__(self, shape: ModelShape, kind: AttentionKind, has_documents: bool, device: torch.device) -> None:
        """Draw the inputs with a fixed seed. `has_documents`: several documents per sequence."""
        config = shape.model.model_copy(update={"encoding": "rope"})
        batch = shape.batch
        length = shape.length
        head_dim = config.head_dim
        dtype = compute_dtype(device)
        generator = torch.Generator(device).manual_seed(0)
        self.kind = kind

        def draw(*sizes: int) -> Tensor:
            return torch.randn(*sizes, generator=generator, device=device, dtype=dtype)

        num_heads = config.num_heads
        num_kv_heads = config.num_kv_heads
        query = draw(batch, length, num_heads, head_dim)
        key = draw(batch, length, num_kv_heads, head_dim)
        value = draw(batch, length, num_kv_heads, head_dim)
        self.inputs = [query, key, value]
        if kind == "moving":
            self.inputs.append(0.2 * draw(batch, length, num_kv_heads, head_dim))
        if kind == "distance bias":
            self.inputs.append(draw(num_heads, length).float())
        for tensor in self.inputs:
            tensor.requires_grad_()

        index = torch.arange(length, device=device)
        self.state = position_state(config, index.expand(batch, -1))
        self.document_starts = None
        if has_documents:
            document_length = math.ceil(length / NUM_DOCUMENTS)
            starts = index // document_length * document_length
            self.document_starts = starts.expand(batch, -1).contiguous()

        num_outputs = 2 if kind == "moving" else 1
        self.d_outputs = [draw(batch, length, num_heads, head_dim) for _ in range(num_outputs)]

    def forward(self, backend: str, deterministic: bool = False) -> list[Tensor]:
        """Return the outputs A v and, if the position tensor moves, A e, [B, N, H, R] each."""
        query, key, value, *extra = self.inputs
        positions = None
        bias = None
        if self.kind == "distance bias":
            bias = DistanceBias(*extra)
        elif self.kind == "moving":
            positions = PositionState(self.state, *extra)
        else:
            positions = PositionState(self.state, None)
        outputs = attend(
            query,
            key,
            value,
            state=positions,
            bias=bias,
            document_starts=self.document_starts,
            averages_state=self.kind == "moving",
            backends=backends_by_priority(backend),
            rotation_by_kernel=True,
            deterministic=deterministic,
        )
        return [output for output in outputs if output is not None]

    @torch.no_grad()
    def inference(self, variant: AttentionVariant) -> None:
        """Run the forward pass alone."""
        with variant.context():
            self.forward(variant.backend, variant.deterministic)

    def step(self, variant: AttentionVariant) -> list[Tensor]:
        """Return outputs, then input gradients."""
        with variant.context():
            outputs = self.forward(variant.backend, variant.deterministic)
            gradients = torch.autograd.grad(outputs, self.inputs, self.d_outputs)
            return [*outputs, *gradients]

    @cached_property
    def exact(self) -> list[Tensor]:
        """Outputs and gradients in float64, computed one key/value head at a time."""
        inputs = [tensor.detach().double().requires_grad_() for tensor in self.inputs]
        num_kv_heads = inputs[1].shape[2]
        outputs: list[list[Tensor]] = []
        for kv_head in range(num_kv_heads):
            outputs.append(self._exact_head(inputs, kv_head))
        gradients = [tensor.grad for tensor in inputs if tensor.grad is not None]
        joined = [torch.cat(heads, 2) for heads in zip(*outputs, strict=True)]
        return [*joined, *gradients]

    def _exact_head(self, inputs: list[Tensor], kv_head: int) -> list[Tensor]:
        """Return a key/value head's outputs, accumulating the input gradients."""
        query, key, value, *extra = inputs
        groups = query.shape[2] // key.shape[2]
        heads = slice(kv_head * groups, (kv_head + 1) * groups)
        queries = query[:, :, heads]
        keys = key[:, :, kv_head : kv_head + 1]
        values = [value[:, :, kv_head : kv_head + 1]]
        if self.kind != "distance bias":
            e = self.state.double()
            if self.kind == "moving":
                e = e + extra[0][:, :, kv_head : kv_head + 1]
                values.append(e)
            queries = rotate(queries, e)
            keys = rotate(keys, e)

        length = query.shape[1]
        index = torch.arange(length, device=query.device)
        scores = torch.einsum("bqhr,bkr->bhqk", queries, keys[:, :, 0]) / math.sqrt(query.shape[3])
        if self.kind == "distance bias":
            distance = (index[:, None] - index).clamp(min=0)
            scores = scores + extra[0][heads][:, distance]
        hidden = index > index[:, None]
        if self.document_starts is not None:
            hidden = hidden | (index < self.document_starts[..., None])
        weights = scores.masked_fill(hidden.view(-1, 1, length, length), -math.inf).softmax(-1)
        outputs = [torch.einsum("bhqk,bkr->bqhr", weights, each[:, :, 0]) for each in values]
        torch.autograd.backward(outputs, [gradient[:, :, heads].double() for gradient in self.d_outputs])
        return [output.detach() for output in outputs]


def relative_error(result: Tensor, exact: Tensor) -> float:
    """Return the largest absolute difference over the largest absolute value."""
    return float((result.detach() - exact).abs().max() / exact.abs().max())
