"""Choice of attention backends, forced backends, and the tensors that each saves."""

import itertools
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from megatape.accounting.activation_memory import plan_activations
from megatape.accounting.activations import activations
from megatape.accounting.saved_tensors import saved_bytes
from megatape.accounting.workload import Workload
from megatape.attention.attend import attend, backends_by_priority, check_forced_backend, get_backend, select_backend
from megatape.attention.backend import AttentionRequirements, BiasKind
from megatape.attention.backends import sdpa
from megatape.attention.backends.flex import MIN_HEAD_DIM
from megatape.config import Config, parse_config
from megatape.encodings.tape import TapeUpdate
from megatape.model.requirements import attention_requirements
from megatape.registry import AUTO, BACKENDS
from tests.helpers.checks.slow import slow_but
from tests.helpers.models.small_models import model_with

# Device, needs of the encoding, head size, precision, document masks -> backend.
CHOICES: dict[tuple[str, bool, BiasKind, int, torch.dtype, bool], str] = {
    ("cpu", False, "none", 64, torch.float32, False): "sdpa",
    ("cpu", False, "none", 64, torch.float32, True): "sdpa",
    ("cpu", True, "none", 64, torch.float32, False): "blocked",
    ("cpu", True, "none", 32, torch.float32, False): "sdpa",
    ("cpu", False, "distance", 64, torch.float32, False): "blocked",
    ("cpu", False, "pair", 64, torch.float32, False): "blocked",
    ("cuda", False, "none", 64, torch.bfloat16, False): "sdpa",
    ("cuda", False, "none", 64, torch.bfloat16, True): "triton",
    ("cuda", False, "none", 64, torch.float32, True): "flex",
    ("cuda", True, "none", 64, torch.bfloat16, False): "triton",
    ("cuda", True, "none", 64, torch.bfloat16, True): "triton",
    ("cuda", True, "none", 128, torch.bfloat16, False): "sdpa",
    ("cuda", True, "none", 20, torch.float32, False): "sdpa",
    ("cuda", True, "none", 20, torch.bfloat16, False): "triton",
    ("cuda", False, "distance", 64, torch.bfloat16, False): "triton",
    ("cuda", False, "distance", MIN_HEAD_DIM - 1, torch.float32, False): "blocked",
    ("cuda", False, "pair", 64, torch.bfloat16, True): "blocked",
    ("cpu", True, "pair", 64, torch.float32, True): "blocked",
    ("cuda", True, "pair", 64, torch.bfloat16, False): "blocked",
    ("cuda", True, "distance", 64, torch.bfloat16, False): "flex",
}


def need(device_type: str, moves_state: bool, bias: BiasKind) -> AttentionRequirements:
    return AttentionRequirements(device_type, moves_state, bias, 64, torch.float32, masked=False)


@pytest.mark.parametrize("asked", CHOICES, ids=str)
def test_automatic_choice(asked: tuple[str, bool, BiasKind, int, torch.dtype, bool]) -> None:
    assert select_backend(AttentionRequirements(*asked)) == CHOICES[asked]


@pytest.mark.parametrize("name", BACKENDS)
def test_a_forced_backend_runs_where_it_can(name: str) -> None:
    """Elsewhere `check` returns a reason, and layers that it does not support use the automatic choice."""
    for device_type in ("cpu", "cuda"):
        for moves_state, bias in itertools.product((False, True), get_args(BiasKind)):
            asked = need(device_type, moves_state, bias)
            reason = get_backend(name).unsupported_reason(asked)
            assert select_backend(asked, backends_by_priority(name)) == (select_backend(asked) if reason else name)
            if reason:
                with pytest.raises(
                    ValueError,
                    match=f"training.attention is {name}, which .* \\(encoding own\\): choose auto, or one of .*blocked",
                ):
                    check_forced_backend(asked, name, "own")
            else:
                check_forced_backend(asked, name, "own")
    check_forced_backend(need("cpu", True, "pair"), AUTO, "own")


def test_kernels_of_sdpa(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data-center GPUs since Hopper use cuDNN's kernels first, others FlashAttention-2's. A run reports its kernel."""
    orders: list[list[SDPBackend]] = []
    monkeypatch.setattr(sdpa, "prefer_attention_kernels", orders.append)
    for index, capability in enumerate([(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        sdpa.prefer_fast_kernels(torch.device("cuda", 100 + index))
    assert [order[0].name.partition("_")[0] for order in orders] == ["FLASH", "FLASH", "CUDNN", "CUDNN", "FLASH"]
    assert all(len(set(order)) == len(order) == 4 for order in orders)
    names = {get_backend(name).kernel_name(need("cpu", False, "none"), torch.device("cpu")) for name in ("sdpa", "blocked")}
    assert names == {"flash_attention", ""}


def test_every_layer_takes_the_forced_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocked attention runs even without biases, and equals PyTorch's."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 9, heads, 4, generator=generator) for heads in (6, 2, 2))
    calls: list[Tensor] = []
    kernel = get_backend("blocked").attend

    def counted(*arguments: Any) -> tuple[Tensor, Tensor | None]:
        content, attended_state = kernel(*arguments)
        calls.append(content)
        return content, attended_state

    monkeypatch.setattr(get_backend("blocked"), "attend", counted)
    (found, _), (reference, _) = (attend(q, k, v, backends=backends_by_priority(name)) for name in ("blocked", "sdpa"))
    assert found is calls[0]
    torch.testing.assert_close(found, reference, rtol=1e-5, atol=1e-5)  # float32 sums of 9 terms in a different order


class Fused(torch.autograd.Function):
    """Stand-in for a fused kernel: it saves the same tensors, and its numbers are meaningless."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, length, _ = q.shape
        out = v.new_zeros(batch, length, heads, v.shape[-1]).transpose(1, 2)  # like q
        # Seed and offset of dropout, as PyTorch's operator keeps them
        seed = torch.zeros((), dtype=torch.long)
        offset = torch.zeros((), dtype=torch.long)
        ctx.save_for_backward(q, k, v, out, q.new_zeros(q.shape[:3], dtype=torch.float32), seed, offset)
        return out


FUSED = ("sdpa", "flex", "triton")


@pytest.mark.parametrize("groups", slow_but([2], [1, 2]), ids="groups of {}".format)
@pytest.mark.parametrize(
    ("encoding", "head_dims", "names"),
    [("tape", (16, 128), FUSED), ("tape_vector", (64, 128), FUSED), ("rope", (16,), FUSED), ("t5", (16,), ("triton",))],
)
def test_the_plan_counts_what_autograd_keeps(
    raw_config: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    encoding: str,
    head_dims: tuple[int, ...],
    names: tuple[str, ...],
    groups: int,
) -> None:
    """An additional layer saves the planned bytes, with stand-ins for kernels that only GPUs have."""
    has_kernel = TapeUpdate.has_kernel
    for name, size in itertools.product(names, head_dims):
        monkeypatch.setattr(get_backend(name), "unsupported_reason", lambda need: None)
        raw_config["model"] |= {"encoding": encoding, "num_heads": 4, "num_kv_heads": 4 // groups, "head_dim": size}
        raw_config["training"]["attention"] = name
        config = parse_config(raw_config, "test")
        with monkeypatch.context() as patched:
            patched.setattr(F, "scaled_dot_product_attention", lambda q, k, v, **_: Fused.apply(q, k, v))
            patched.setattr("megatape.attention.backends.flex.flex_attention", lambda q, k, v, **_: Fused.apply(q, k, v))
            patched.setattr("megatape.attention.backends.sdpa._padded", lambda heads, e: heads)  # as on a GPU
            for kernels in ("attention.kernels.attention", "attention.kernels.rotation", "encodings.kernels.update"):
                patched.setattr(f"megatape.{kernels}.launch", lambda *_, **__: None)
            patched.setattr("megatape.attention.fused_rotation.has_kernels", lambda device: True)
            patched.setattr(TapeUpdate, "has_kernel", lambda update, device: has_kernel(update, torch.device("meta")))
            kept = _layer(config, name)
        assert activations(Workload.from_config(config), on_gpu=True).layer == kept, (name, size)


def _layer(config: Config, backend: str) -> int:
    """Return the bytes that autograd saves for a layer that is neither the first nor the last."""
    counts = []
    for num_layers in (3, 4):
        deeper = config.model.model_copy(update={"num_layers": num_layers})
        model = model_with(deeper, backends=(backend,), rotation_by_kernel=True, update_by_kernel=True)
        counts.append(saved_bytes(model, config.training.micro_batch_size, config.data.sequence_length))
    return counts[1] - counts[0]


def test_planner_refuses_what_cannot_run(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"]["attention"] = "flex"
    with pytest.raises(ValueError, match="training.attention is flex, which needs a head_dim of at least 16"):
        plan_activations(Workload.from_config(parse_config(raw_config, "test")), on_gpu=True)
    raw_config["training"]["attention"] = "nothing"
    with pytest.raises(ValueError, match="training.attention.*choose one of auto, sdpa, flex, triton, blocked"):
        parse_config(raw_config, "test")


def test_needs_are_those_of_the_encoding(raw_config: dict[str, Any]) -> None:
    raw_config["model"]["encoding"] = "alibi"
    raw_config["data"]["mask_documents"] = True
    alone = AttentionRequirements("cuda", False, "distance", 4, torch.float32, True)
    assert attention_requirements(parse_config(raw_config, "test"), "cuda") == [alone]
    raw_config["model"]["encoding"] = "tape"
    assert [each.moves_state for each in attention_requirements(parse_config(raw_config, "test"), "cuda")] == [True, False]
    raw_config["model"] |= {"encoding": "tape_fox", "nope_every": 2}
    found = attention_requirements(parse_config(raw_config, "test"), "cuda")
    assert [(each.moves_state, each.bias) for each in found] == [(True, "pair"), (False, "pair"), (False, "none")]
