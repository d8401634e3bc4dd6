"""Choosing and forcing attention backends, and the tensors saved by each."""

import itertools
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from megatape.accounting.memory.activation_memory import plan_activations
from megatape.accounting.memory.saved_activations import count_saved_activations
from megatape.accounting.memory.saved_tensors import saved_bytes
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
from tests.helpers.models import fa4_stand_in
from tests.helpers.models.small_models import model_with


class Choice(NamedTuple):
    """Backend chosen for a layer.

    Attributes:
        backend: Name of the backend.
        device_type: Type of the device.
        averages_state: Whether attention averages the position state.
        bias: Kind of bias.
        head_dim: Head size R.
        dtype: Data type.
        masked: Whether samples are packed documents.
    """

    backend: str
    device_type: str
    averages_state: bool = False
    bias: BiasKind = "none"
    head_dim: int = 64
    dtype: torch.dtype = torch.bfloat16
    masked: bool = False

    def requirements(self, deterministic: bool = False) -> AttentionRequirements:
        """Return the requirements of the layer."""
        return AttentionRequirements(
            self.device_type,
            self.averages_state,
            self.bias,
            self.head_dim,
            self.dtype,
            self.masked,
            deterministic=deterministic,
        )


CHOICES = [
    Choice("sdpa", "cpu", dtype=torch.float32),
    Choice("sdpa", "cpu", dtype=torch.float32, masked=True),
    Choice("blocked", "cpu", averages_state=True, dtype=torch.float32),
    Choice("sdpa", "cpu", averages_state=True, head_dim=32, dtype=torch.float32),
    Choice("blocked", "cpu", bias="distance", dtype=torch.float32),
    Choice("blocked", "cpu", bias="pair", dtype=torch.float32),
    Choice("sdpa", "cuda"),
    Choice("triton", "cuda", masked=True),
    Choice("flex", "cuda", dtype=torch.float32, masked=True),
    Choice("triton", "cuda", averages_state=True),
    Choice("triton", "cuda", averages_state=True, masked=True),
    Choice("sdpa", "cuda", averages_state=True, head_dim=128),
    Choice("sdpa", "cuda", averages_state=True, head_dim=20, dtype=torch.float32),
    Choice("triton", "cuda", averages_state=True, head_dim=20),
    Choice("triton", "cuda", bias="distance"),
    Choice("blocked", "cuda", bias="distance", head_dim=MIN_HEAD_DIM - 1, dtype=torch.float32),
    Choice("blocked", "cuda", bias="pair", masked=True),
    Choice("blocked", "cpu", averages_state=True, bias="pair", dtype=torch.float32, masked=True),
    Choice("blocked", "cuda", averages_state=True, bias="pair"),
    Choice("flex", "cuda", averages_state=True, bias="distance"),
    Choice("triton", "cuda", bias="decay"),
    Choice("triton", "cuda", averages_state=True, bias="decay", head_dim=128, dtype=torch.float32, masked=True),
    Choice("blocked", "cpu", averages_state=True, bias="decay", dtype=torch.float32, masked=True),
]
# Choices if gradients must repeat bit for bit
DETERMINISTIC_CHOICES = [
    Choice("sdpa", "cpu", dtype=torch.float32),
    Choice("triton", "cuda"),
    Choice("triton", "cuda", averages_state=True, head_dim=128),
    Choice("flex", "cuda", averages_state=True, head_dim=128, dtype=torch.float32),
    Choice("triton", "cuda", bias="distance", dtype=torch.float32),
    Choice("blocked", "cuda", bias="pair"),
]


def need(device_type: str, averages_state: bool, bias: BiasKind) -> AttentionRequirements:
    return AttentionRequirements(device_type, averages_state, bias, 64, torch.float32, masked=False)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_automatic_choice(choice: Choice) -> None:
    assert select_backend(choice.requirements()) == choice.backend


@pytest.mark.parametrize("choice", DETERMINISTIC_CHOICES, ids=str)
def test_automatic_choice_of_deterministic_backends(choice: Choice) -> None:
    """If gradients must repeat, `auto` avoids PyTorch's kernels on a GPU, which add some gradients in any order."""
    assert select_backend(choice.requirements(deterministic=True)) == choice.backend


@pytest.mark.parametrize("bias", get_args(BiasKind))
@pytest.mark.parametrize("averages_state", [False, True])
@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_forced_backend_runs_where_it_can(name: str, device_type: str, averages_state: bool, bias: BiasKind) -> None:
    """A forced backend takes what it supports. The rest has the automatic choice, and `check_forced_backend` refuses it."""
    requirements = need(device_type, averages_state, bias)
    choice = select_backend(requirements, backends_by_priority(name))
    if get_backend(name).unsupported_reason(requirements) is None:
        assert choice == name
        check_forced_backend(requirements, name, "own")
    else:
        assert choice == select_backend(requirements)
        message = f"training.attention is {name}, which .* \\(encoding own\\): choose auto, or one of .*blocked"
        with pytest.raises(ValueError, match=message):
            check_forced_backend(requirements, name, "own")


def test_the_automatic_choice_is_never_refused() -> None:
    check_forced_backend(need("cpu", True, "pair"), AUTO, "own")


@pytest.mark.parametrize(
    ("device", "capability", "first"),
    [
        # A device index of its own: orders are set once per device.
        (100, (8, 0), "FLASH"),
        (101, (8, 9), "FLASH"),
        (102, (9, 0), "CUDNN"),
        (103, (10, 0), "CUDNN"),
        (104, (12, 0), "FLASH"),
    ],
)
def test_order_of_sdpa_kernels(monkeypatch: pytest.MonkeyPatch, device: int, capability: tuple[int, int], first: str) -> None:
    """Data-center GPUs since Hopper use cuDNN's kernels first, others FlashAttention-2's."""
    orders: list[list[SDPBackend]] = []
    monkeypatch.setattr(sdpa, "prefer_attention_kernels", orders.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    sdpa.prefer_fast_kernels(torch.device("cuda", device))

    (order,) = orders
    assert order[0].name.partition("_")[0] == first
    assert len(order) == 4
    assert len(set(order)) == 4


@pytest.mark.parametrize(("backend", "kernel"), [("sdpa", "flash_attention"), ("blocked", "")])
def test_kernel_names_on_a_cpu(backend: str, kernel: str) -> None:
    requirements = need("cpu", False, "none")
    assert get_backend(backend).kernel_name(requirements, torch.device("cpu")) == kernel


def test_every_layer_takes_the_forced_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forced backend runs in every layer: blocked attention also runs layers without biases, and equals PyTorch's."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 9, heads, 4, generator=generator) for heads in (6, 2, 2))
    blocked_outputs: list[Tensor] = []
    blocked_attend = get_backend("blocked").attend

    def recorded(*arguments: Any) -> tuple[Tensor, Tensor | None]:
        content, attended_state = blocked_attend(*arguments)
        blocked_outputs.append(content)
        return content, attended_state

    monkeypatch.setattr(get_backend("blocked"), "attend", recorded)
    content, _ = attend(q, k, v, backends=backends_by_priority("blocked"))
    expected, _ = attend(q, k, v, backends=backends_by_priority("sdpa"))
    assert content is blocked_outputs[0]
    torch.testing.assert_close(content, expected, rtol=1e-5, atol=1e-5)  # float32 sums with 9 terms in a different order


class Fused(torch.autograd.Function):
    """Stand-in for a fused kernel: it saves the same tensors, and its numbers are meaningless."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, length, _ = q.shape
        out = v.new_zeros(batch, length, heads, v.shape[-1]).transpose(1, 2)  # like q
        logsumexp = q.new_zeros(q.shape[:3], dtype=torch.float32)
        # PyTorch's operator also saves dropout's seed and offset.
        seed = torch.zeros((), dtype=torch.long)
        offset = torch.zeros((), dtype=torch.long)
        ctx.save_for_backward(q, k, v, out, logsumexp, seed, offset)
        return out


FUSED = ("sdpa", "flex", "fa4", "triton")
# Encoding, head sizes, backends
KEPT = [
    ("tape", (16, 128), FUSED),
    ("tape_vector", (64, 128), FUSED),
    ("rope", (16,), FUSED),
    ("t5", (16,), ("triton",)),
]


@pytest.mark.parametrize("groups", slow_but([2], [1, 2]), ids="groups of {}".format)
@pytest.mark.parametrize(("encoding", "head_dims", "names"), KEPT)
def test_the_plan_counts_what_autograd_keeps(
    raw_config: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    encoding: str,
    head_dims: tuple[int, ...],
    names: tuple[str, ...],
    groups: int,
) -> None:
    """An additional layer saves the planned bytes, using stand-ins for kernels existing on GPUs only."""
    fa4_stand_in.install(monkeypatch, tmp_path)
    has_kernel = TapeUpdate.has_kernel
    for name, size in itertools.product(names, head_dims):
        monkeypatch.setattr(get_backend(name), "unsupported_reason", lambda need: None)
        raw_config["model"] |= {"encoding": encoding, "num_heads": 4, "num_kv_heads": 4 // groups, "head_dim": size}
        raw_config["training"]["attention"] = name
        config = parse_config(raw_config, "test")
        with monkeypatch.context() as patched:
            patched.setattr(F, "scaled_dot_product_attention", lambda q, k, v, **_: Fused.apply(q, k, v))
            patched.setattr("megatape.attention.backends.flex.flex_attention", lambda q, k, v, **_: Fused.apply(q, k, v))
            # On a GPU, heads are not padded.
            patched.setattr("megatape.attention.backends.sdpa._padded", lambda heads, e: heads)
            for kernels in ("attention.kernels.head_launches", "attention.kernels.rotation", "encodings.kernels.update"):
                patched.setattr(f"megatape.{kernels}.launch", lambda *_, **__: None)
            patched.setattr("megatape.attention.rotating_backend.has_kernels", lambda device: True)
            patched.setattr(TapeUpdate, "has_kernel", lambda update, device: has_kernel(update, torch.device("meta")))
            num_saved = _saved_bytes_per_layer(config, name)
        assert count_saved_activations(Workload.from_config(config), on_gpu=True).layer == num_saved, (name, size)


def _saved_bytes_per_layer(config: Config, backend: str) -> int:
    """Return the bytes that autograd saves for a layer between the first and the last one."""
    counts = []
    for num_layers in (3, 4):
        deeper = config.model.model_copy(update={"num_layers": num_layers})
        model = model_with(deeper, backends=(backend,), rotation_by_kernel=True, update_by_kernel=True)
        counts.append(saved_bytes(model, config.training.micro_batch_size, config.data.sequence_length))
    return counts[1] - counts[0]


def test_planner_refuses_a_forced_backend_that_cannot_run(raw_config: dict[str, Any]) -> None:
    raw_config["training"]["attention"] = "flex"
    with pytest.raises(ValueError, match="training.attention is flex, which needs a head_dim of at least 16"):
        plan_activations(Workload.from_config(parse_config(raw_config, "test")), on_gpu=True)


def test_an_unknown_backend_is_refused(raw_config: dict[str, Any]) -> None:
    raw_config["training"]["attention"] = "nothing"
    with pytest.raises(ValueError, match="training.attention.*choose one of auto, sdpa, flex, fa4, triton, blocked"):
        parse_config(raw_config, "test")


def requirements_of(raw_config: dict[str, Any]) -> list[AttentionRequirements]:
    return attention_requirements(parse_config(raw_config, "test"), "cuda")


def test_requirements_of_equal_layers_are_one(raw_config: dict[str, Any]) -> None:
    raw_config["model"]["encoding"] = "alibi"
    raw_config["data"]["mask_documents"] = True
    assert requirements_of(raw_config) == [AttentionRequirements("cuda", False, "distance", 4, torch.float32, True)]


def test_the_last_layer_of_tape_does_not_move_the_state(raw_config: dict[str, Any]) -> None:
    raw_config["model"]["encoding"] = "tape"
    assert [requirements.averages_state for requirements in requirements_of(raw_config)] == [True, False]


def test_layers_without_positions_have_no_bias(raw_config: dict[str, Any]) -> None:
    raw_config["model"] |= {"encoding": "tape_fox", "nope_every": 2, "num_layers": 4}
    needs = [(requirements.averages_state, requirements.bias) for requirements in requirements_of(raw_config)]
    assert needs == [(True, "decay"), (False, "decay"), (False, "none")]
