"""The operations counted for a step are those that a GPU runs."""

from typing import Any

import pytest

from megatape.accounting.flops import attention_flops, forward_flops
from megatape.config import Config, parse_config
from megatape.tools.planner.operations import Attention, Work
from megatape.tools.planner.work import step_work


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
