"""Operations counted for a step are those that a GPU runs."""

from typing import Any

import pytest

from megatape.accounting.whole_model.flops import attention_flops, forward_flops
from megatape.accounting.workload import Workload
from megatape.config import Config, parse_config
from megatape.tools.planner.kernels.operations import Attention, AttentionBackend, Direction, KernelKind, Work
from megatape.tools.planner.kernels.step_work import step_work


def _bytes(work: Work) -> float:
    return sum(operation.bytes * times for operation, times in work.items())


def _flops(work: Work, kind: KernelKind) -> float:
    return sum(operation.flops * times for operation, times in work.items() if operation.kind == kind)


def _attention(work: Work, backend: AttentionBackend) -> dict[Direction, float]:
    """Return the FLOPs of attention by pass. Another backend is an error."""
    flops: dict[Direction, float] = {Direction.FORWARD: 0, Direction.BACKWARD: 0}
    for operation, times in work.items():
        kind = operation.kind
        if isinstance(kind, Attention):
            assert kind.backend == backend
            assert kind.head_dim == 16
            flops[kind.direction] += operation.flops * times
    return flops


@pytest.fixture
def raw_half(raw_config: dict[str, Any]) -> dict[str, Any]:
    """Return a bfloat16 configuration with a head size that every kernel supports."""
    raw_config["model"] |= {"head_dim": 16, "num_heads": 4, "num_kv_heads": 4, "num_layers": 4}
    raw_config["training"]["precision"] = "bfloat16"
    raw_config["zero"] = {"stage": 2}
    return raw_config


def _config(raw: dict[str, Any], encoding: str, **training: Any) -> Config:
    changed = {
        "model": raw["model"] | {"encoding": encoding},
        "training": raw["training"] | training,
    }
    return parse_config(raw | changed, "test")


def test_flops_of_rope_are_three_forward_passes(raw_half: dict[str, Any]) -> None:
    """Attention has the FLOPs of FlashAttention without the masked half: 2 of 4 products forward, 5 of 10 backward."""
    config = _config(raw_half, "rope")
    length = config.data.sequence_length
    batch = config.training.micro_batch_size
    attention = attention_flops(config.model, length) * batch
    others = forward_flops(config.model, length) * batch - attention
    work = step_work(Workload.from_config(config))
    assert _flops(work, KernelKind.PRODUCT) == 3 * others
    assert _attention(work, AttentionBackend.SDPA) == {Direction.FORWARD: attention / 2, Direction.BACKWARD: 1.25 * attention}


def test_checkpointing_computes_blocks_again(raw_half: dict[str, Any]) -> None:
    """Everything is recomputed but the head, and the last product of each block, which the backward pass does not need."""
    plain = step_work(Workload.from_config(_config(raw_half, "rope", activation_checkpointing="none")))
    checkpointed = step_work(Workload.from_config(_config(raw_half, "rope", activation_checkpointing="full")))

    config = _config(raw_half, "rope")
    model = config.model
    length = config.data.sequence_length
    products = forward_flops(model, length) - attention_flops(model, length)
    not_recomputed = 2 * model.hidden_size * (model.vocab_size + model.num_layers * model.mlp_size) * length
    recomputed = (products - not_recomputed) * config.training.micro_batch_size
    assert _flops(checkpointed, KernelKind.PRODUCT) - _flops(plain, KernelKind.PRODUCT) == recomputed
    assert _bytes(checkpointed) > _bytes(plain)


@pytest.mark.parametrize("encoding", ["alibi", "fire", "tape_vector"])
def test_every_kind_of_attention(raw_half: dict[str, Any], encoding: str) -> None:
    work = step_work(Workload.from_config(_config(raw_half, encoding)))
    assert min(work.values()) > 0
    assert _bytes(work) > 0


def test_our_kernels_move_less(raw_half: dict[str, Any]) -> None:
    """Our kernels read v and e in place. In return they multiply more often.

    Layers that move the state have 3 products forward and 10 backward, and the last layer 2 and 7. PyTorch's kernel has 3 and
    7, and 2 and 5.
    """
    pytest.importorskip("triton")
    plain = step_work(Workload.from_config(_config(raw_half, "tape", attention="sdpa")))
    ours = step_work(Workload.from_config(_config(raw_half, "tape", attention="triton")))

    config = _config(raw_half, "tape")
    num_moving = config.model.num_layers - 1
    length = config.data.sequence_length
    batch = config.training.micro_batch_size
    state_elements = num_moving * batch * length * 64
    saved_bytes = (_bytes(plain) - _bytes(ours)) / state_elements
    # With a float32 copy of e, this would be 400.
    assert 10 < saved_bytes < 60

    product = batch * length**2 * 64  # Half of a product's FLOPs, since the rest is masked
    forward = product * (3 * num_moving + 2)
    assert _attention(plain, AttentionBackend.SDPA) == {
        Direction.FORWARD: forward,
        Direction.BACKWARD: product * (7 * num_moving + 5),
    }
    assert _attention(ours, AttentionBackend.TRITON) == {
        Direction.FORWARD: forward,
        Direction.BACKWARD: product * (10 * num_moving + 7),
    }
    # The update multiplies tiles with 64 rows: 4 tokens, padding their channels to 16.
    num_tiles = num_moving * batch * length // 4
    assert _flops(ours, KernelKind.FUSED_PRODUCTS) == 2 * num_tiles * 64**2 * 16 * (2 + 5)
