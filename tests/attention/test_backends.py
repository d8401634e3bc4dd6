"""Which attention backend runs where, and what happens when the configuration forces one."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from megatape.attention.backend import Attends, Need, Sizes
from megatape.attention.flex import MIN_HEAD_DIM
from megatape.attention.operation import attend, check, choose, load
from megatape.attention.sdpa import sdpa_attention
from megatape.config import parse_config
from megatape.model.attention import attention_need
from megatape.plan.memory import attention_copies
from megatape.registry import AUTO, BACKENDS

# Device, needs of the encoding, head size -> backend.
CHOICES: dict[tuple[str, Attends, int], str] = {
    ("cpu", "plain", 64): "sdpa",
    ("cpu", "moving", 64): "blocked",
    ("cpu", "distance bias", 64): "blocked",
    ("cpu", "pair bias", 64): "blocked",
    ("cuda", "plain", 64): "sdpa",
    ("cuda", "moving", 64): "sdpa",
    ("cuda", "distance bias", 64): "flex",
    ("cuda", "distance bias", MIN_HEAD_DIM - 1): "blocked",
    ("cuda", "pair bias", 64): "blocked",
}


def need(device_type: str, attends: Attends, head_dim: int = 64) -> Need:
    return Need(device_type, attends, head_dim, torch.float32, masked=False)


@pytest.mark.parametrize(("device_type", "attends", "head_dim"), CHOICES, ids=str)
def test_automatic_choice(device_type: str, attends: Attends, head_dim: int) -> None:
    assert choose(need(device_type, attends, head_dim)) == CHOICES[device_type, attends, head_dim]


@pytest.mark.parametrize("name", BACKENDS)
def test_a_forced_backend_runs_where_it_can(name: str) -> None:
    """Elsewhere `check` rejects it with a reason, and layers that it does not support get the automatic choice."""
    for device_type in ("cpu", "cuda"):
        for attends in get_args(Attends):
            asked = need(device_type, attends)
            refusal = load(name).refusal(asked)
            assert choose(asked, name) == (choose(asked) if refusal else name)
            if refusal:
                with pytest.raises(
                    ValueError, match=f"training.attention is {name}, which .*: choose auto, or one of .*blocked"
                ):
                    check(asked, name)
            else:
                check(asked, name)
    check(need("cpu", "pair bias"), AUTO)


def test_every_layer_takes_the_forced_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocked attention runs even without biases, and equals PyTorch's."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 9, heads, 4, generator=generator) for heads in (6, 2, 2))
    calls: list[Tensor] = []
    kernel = load("blocked").attend

    def counted(*arguments: Any) -> Tensor:
        calls.append(kernel(*arguments))
        return calls[-1]

    monkeypatch.setattr(load("blocked"), "attend", counted)
    found, reference = attend(q, k, v, None, None, "blocked"), sdpa_attention(q, k, v, None, None)
    assert found is calls[0]
    torch.testing.assert_close(found, reference, rtol=1e-5, atol=1e-5)  # float32 sums of 9 terms in a different order


def test_planner_reads_what_a_backend_keeps(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """On a GPU: copies for one call over [v | e], none for blocks, and an error before training."""
    sizes = Sizes(tokens=4 * 32, heads=8, channels=8, head_dim=4, state_width=4, element_bytes=4)
    copies = {}
    for name in (AUTO, "blocked"):
        raw_config["training"]["attention"] = name
        copies[name] = attention_copies(parse_config(raw_config, "test"))
    assert copies == {AUTO: load("sdpa").copied_bytes(sizes), "blocked": 0}
    assert copies[AUTO] == 128 * 8 * (4 + 4 + 4) * 4  # rotated queries and keys, and e; with L = H nothing is repeated
    raw_config["training"]["attention"] = "flex"
    with pytest.raises(ValueError, match="training.attention is flex, which supports a bias by distance only"):
        attention_copies(parse_config(raw_config, "test"))
    raw_config["training"]["attention"] = "flash"
    with pytest.raises(ValueError, match="training.attention.*choose one of auto, flex, sdpa, blocked, triton"):
        parse_config(raw_config, "test")


def test_need_is_that_of_the_encoding(raw_config: dict[str, Any]) -> None:
    raw_config["model"]["encoding"] = "alibi"
    raw_config["data"]["mask_documents"] = True
    assert attention_need(parse_config(raw_config, "test"), "cuda") == Need("cuda", "distance bias", 4, torch.float32, True)
