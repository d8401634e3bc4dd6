"""The operations that the planner counts are those that a GPU runs, with the bytes that they move."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from megatape.accounting.counts import attention_flops, forward_flops
from megatape.accounting.gpus import load_gpu
from megatape.config import Config, parse_config
from megatape.tools.planner.operations import (
    A100_MATRIX_EFFICIENCY,
    EAGER_SLOWDOWN,
    FLOAT32_SLOWDOWN,
    FUSED_EFFICIENCY,
    MATRIX_EFFICIENCY,
    MEMORY_EFFICIENCY,
    Attention,
    Operation,
    Work,
    device_times,
)
from megatape.tools.planner.work import count, fused_work, step_work

# What one call moves, for x of 6 x 8 in bfloat16.
CALLS: dict[str, tuple[Callable[[Tensor], Any], float]] = {
    "a view": (lambda x: x.view(8, 6).T[:, 2:], 0),
    "reads and writes": (lambda x: x * 2, 48 * (2 + 2)),
    "a cast": (lambda x: x.float(), 48 * (2 + 4)),
    "both operands": (lambda x: x + x.new_empty(6, 8), 48 * (2 + 2 + 2)),
    "one operand twice": (lambda x: x * x, 48 * (2 + 2)),
    "an expanded operand": (lambda x: x + x[:1].expand(6, 8), 48 * (2 + 2) + 8 * 2),
    "in place": (lambda x: x.mul_(2), 48 * (2 + 2)),
    "filled": (lambda x: torch.zeros_like(x), 48 * 2),
    "copied over": (lambda x: x.new_empty(6, 8).copy_(x), 48 * (2 + 2)),
    "picked rows": (lambda x: F.embedding(torch.zeros(3, dtype=torch.long), x), 3 * (8 + 8) + 3 * 8 * (2 + 2)),
}


@pytest.mark.parametrize("call", CALLS)
def test_bytes_of_a_call(call: str) -> None:
    function, expected = CALLS[call]
    with torch.device("meta"):
        x = torch.empty(6, 8, dtype=torch.bfloat16)
        with count() as work:
            function(x)
    assert _bytes(work) == expected


def _bytes(work: Work) -> float:
    return sum(operation.bytes * times for operation, times in work.items())


def _flops(work: Work, kind: str) -> float:
    return sum(operation.flops * times for operation, times in work.items() if operation.kind == kind)


def _attention(work: Work, backend: str) -> dict[str, float]:
    """FLOPs of attention by pass; those of another backend are an error."""
    found: dict[str, float] = {"forward": 0, "backward": 0}
    for operation, times in work.items():
        if isinstance(operation.kind, Attention):
            assert operation.kind[::2] == (backend, 16)
            found[operation.kind.direction] += operation.flops * times
    return found


@pytest.fixture
def raw_half(raw_config: dict[str, Any]) -> dict[str, Any]:
    """bfloat16, and heads that every kernel takes."""
    raw_config["model"] |= {"head_dim": 16, "num_heads": 4, "num_kv_heads": 4, "num_layers": 4}
    raw_config["training"]["precision"] = "bfloat16"
    raw_config["zero"] = {"stage": 2}
    return raw_config


def _config(raw: dict[str, Any], encoding: str, **training: Any) -> Config:
    model, training = raw["model"] | {"encoding": encoding}, raw["training"] | training
    return parse_config(raw | {"model": model, "training": training}, "test")


def test_flops_of_rope_are_three_forward_passes(raw_half: dict[str, Any]) -> None:
    """And attention's are those of FlashAttention, of which half the scores are masked: 2 of 4 products, and 5 of 10."""
    config = _config(raw_half, "rope")
    length, batch = config.data.sequence_length, config.training.micro_batch_size
    attention = attention_flops(config.model, length) * batch
    work = step_work(config)
    assert _flops(work, "product") == 3 * (forward_flops(config.model, length) * batch - attention)
    assert _attention(work, "sdpa") == {"forward": attention / 2, "backward": 1.25 * attention}


def test_checkpointing_computes_blocks_again(raw_half: dict[str, Any]) -> None:
    """All but the head, and the last product of each block, whose result the backward pass does not need."""
    plain, again = (step_work(_config(raw_half, "rope", activation_checkpointing=mode)) for mode in ("none", "full"))
    config = _config(raw_half, "rope")
    length, batch = config.data.sequence_length, config.training.micro_batch_size
    needless = config.model.vocab_size + config.model.num_layers * config.model.mlp_size
    products = forward_flops(config.model, length) - attention_flops(config.model, length)
    expected = products - 2 * config.model.hidden_size * needless * length
    assert _flops(again, "product") - _flops(plain, "product") == expected * batch
    assert _bytes(again) > _bytes(plain)


@pytest.mark.parametrize("encoding", ["alibi", "fire", "tape_vector"])
def test_every_kind_of_attention(raw_half: dict[str, Any], encoding: str) -> None:
    work = step_work(_config(raw_half, encoding))
    assert min(work.values()) > 0 and _bytes(work) > 0


def test_our_kernels_move_less(raw_half: dict[str, Any]) -> None:
    """They read v and e where they lie. In return attention multiplies 3 and 10 times in layers that move the state, and 2 and
    7 times in the last, where PyTorch's kernel takes 3 and 7, and 2 and 5."""
    pytest.importorskip("triton")
    plain, ours = (step_work(_config(raw_half, "tape", attention=name)) for name in ("sdpa", "triton"))
    config = _config(raw_half, "tape")
    layers, length, batch = config.model.num_layers - 1, config.data.sequence_length, config.training.micro_batch_size
    assert 10 < (_bytes(plain) - _bytes(ours)) / (layers * batch * length * 64) < 60  # with a float32 copy of e: 400
    once = batch * length**2 * 64  # half of a product's FLOPs: the rest is masked
    assert _attention(plain, "sdpa") == {"forward": once * (3 * layers + 2), "backward": once * (7 * layers + 5)}
    assert _attention(ours, "triton") == {"forward": once * (3 * layers + 2), "backward": once * (10 * layers + 7)}
    assert _flops(ours, "fused") == 2 * layers * batch * length * 16**3 * (2 + 5)  # padded to 16


def test_bytes_of_the_rotation_kernels() -> None:
    """Queries, keys and the terms of e are read once, or e twice forward; what is rotated and e are written once."""
    pytest.importorskip("triton")
    from megatape.attention.kernels.rotation import Rotation

    tokens, heads, channels, size = 4096, 8, 2, 64
    q, k, delta = (
        torch.empty(1, tokens, count, size, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for count in (heads, channels, channels)
    )
    with count() as forward:
        rotated_q, rotated_k, e = Rotation.apply(q, k, torch.empty(1, tokens, 1, size, device="meta"), delta, True)
    assert e is not None
    d_outputs = [torch.empty_like(output) for output in (rotated_q, rotated_k, e)]
    with count() as backward:
        torch.autograd.backward((rotated_q, rotated_k, e), d_outputs)
    angles, of_queries, of_keys = (tokens * size * number for number in (4, 2 * heads, 2 * channels))
    assert _bytes(forward) == 2 * angles + 2 * of_queries + (2 + 3) * of_keys
    assert _bytes(backward) == angles + 3 * of_queries + (3 + 3) * of_keys


def test_bytes_of_the_update_kernel() -> None:
    """Those of docs/kernels.md, 6 forward and 10 backward, and of what is smaller than e: gates, gradients of weights."""
    pytest.importorskip("triton")
    from megatape.nn.kernels.update import PROGRAMS, fused_update

    tokens, channels, size, inner = 4096, 8, 64, 4

    def empty(*sizes: int) -> Tensor:
        return torch.empty(*sizes, dtype=torch.bfloat16, device="meta", requires_grad=True)

    moved, attended = empty(1, tokens, channels, size), empty(1, tokens, channels, size)
    weights = empty(channels), empty(1, tokens, inner), empty(inner, channels), empty(channels, inner)
    with count() as forward:
        out = fused_update(torch.empty(1, tokens, 1, size, device="meta"), moved, attended, *weights)
    with count() as backward:
        out.backward(torch.empty_like(out))
    angles, gates = tokens * size * 4, tokens * inner * 2
    of_weights = 2 * (2 * channels * inner + channels)
    assert _bytes(forward) == 6 * moved.numel() + angles + gates + of_weights
    parts = PROGRAMS * (2 * channels * inner + channels) * 4
    kernel = max(backward, key=lambda operation: operation.bytes)
    assert kernel.bytes == 10 * moved.numel() + angles + 2 * gates + of_weights + parts


def test_products_of_kernels_are_those_of_their_source() -> None:
    pytest.importorskip("triton")
    from megatape.attention.kernels import attention, distances
    from megatape.nn.kernels import update

    found = {kernel: sum(products) for kernel, products in attention.PRODUCTS.items()} | update.PRODUCTS
    for kernel, products in found.items():
        parts = [kernel, distances._d_scores] if kernel is attention.distances_kernel else [kernel]
        assert sum(inspect.getsource(part.fn).count("tl.dot(") for part in parts) == products, kernel


def test_fusion_leaves_the_operands_of_products() -> None:
    """What lies between is read and written once: by one kernel before the product, and by one behind it."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        y = F.silu(x.float()) * x
        return (y.to(x.dtype) @ weight).float().exp() + 1

    with torch.device("meta"):
        graph = make_fx(function, tracing_mode="fake")(*(torch.empty(16, 16, dtype=torch.bfloat16) for _ in range(2)))
    numbers = 16 * 16
    assert fused_work(graph) == {
        Operation("other", 0, numbers * (2 + 2)): 1,
        Operation("product", 2 * 16**3, numbers * (2 + 2 + 2)): 1,
        Operation("other", 0, numbers * (2 + 4)): 1,
    }


def test_single_kernels_of_pytorch_are_slower_than_fused_ones() -> None:
    """Otherwise compiling would only save the bytes: 1 to 3%, where measurements show 2 to 10%."""
    gpu = load_gpu("h100")
    with torch.device("meta"), count() as work:
        torch.empty(1024) * 2
    [single] = work
    fused = single._replace(kind="other")
    for eager, compiled in zip(device_times(Work({single: 1}), gpu), device_times(Work({fused: 1}), gpu), strict=True):
        assert math.isclose(eager.memory_bound, EAGER_SLOWDOWN * compiled.memory_bound)


def test_a100s_reach_more_of_their_peak() -> None:
    work: Work = Work({Operation("product", 1e12, 1): 1})
    gpu = load_gpu("a100-80g")
    for times, share in zip(device_times(work, gpu), A100_MATRIX_EFFICIENCY, strict=True):
        assert math.isclose(times.compute_bound, 1e12 / gpu.bfloat16_flops / share)


def test_an_operation_takes_the_longer_of_arithmetic_and_bytes() -> None:
    gpu = load_gpu("h100")
    work: Work = Work({Operation("product", 1e12, 1): 3, Operation("product", 1, 1e9): 2})
    for case, times in enumerate(device_times(work, gpu)):
        assert math.isclose(times.compute_bound, 3e12 / gpu.bfloat16_flops / MATRIX_EFFICIENCY[case])
        assert math.isclose(times.memory_bound, 2e9 / gpu.memory_bandwidth / MEMORY_EFFICIENCY[case])


@pytest.mark.parametrize(
    ("gpu", "kind", "shares"),
    [
        ("h200", Attention("sdpa", "forward", 64), (288 / 989, 363 / 989)),
        ("h100", Attention("sdpa", "backward", 128), (408 / 989, 499 / 989)),
        ("gh200", Attention("triton", "forward", 80), (347 / 989, 426 / 989)),
        ("h100", Attention("triton", "backward", 32), (279 / 989, 349 / 989)),
        ("a100-80g", Attention("sdpa", "forward", 64), FUSED_EFFICIENCY),
    ],
)
def test_rates_of_attention(gpu: str, kind: Attention, shares: tuple[float, float]) -> None:
    """By backend, pass and the size of heads where they are known: one rate for all attention flattered our kernels."""
    found = device_times(Work({Operation(kind, 1e12, 1): 1}), load_gpu(gpu))
    for times, share in zip(found, shares, strict=True):
        assert math.isclose(times.compute_bound, 1e12 / load_gpu(gpu).bfloat16_flops / share)


def test_products_of_float32_are_slower() -> None:
    with torch.device("meta"), count() as work:
        torch.empty(4, 4) @ torch.empty(4, 4)
    assert [operation.flops for operation in work] == [2 * 4**3 * FLOAT32_SLOWDOWN]
