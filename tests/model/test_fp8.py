"""Models with FP8 layers: choosing layers, activation checkpointing, compiling, and the planner's counts."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from megatape.accounting.memory.saved_tensors import saved_bytes
from megatape.config import ActivationCheckpointing as Mode
from megatape.model.transformer import Transformer
from megatape.nn.fp8 import fp8_linear_function
from megatape.nn.linear import Linear
from megatape.nn.linear_function import LinearFunction, linear
from tests.helpers.models.small_models import model_with, random_model, tokens_and_positions

pytestmark = pytest.mark.fp8
LAYERS = (
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.output",
    "mlp.gate",
    "mlp.up",
    "mlp.down",
)
CHANGES: dict[str, Any] = {"num_kv_heads": 2, "attention_bias": "qkvo", "qk_norm": True}


def make_model(mode: Mode = "none", recipe: str | None = "tensorwise", compiler: str | None = None) -> Transformer:
    drawn = random_model(**CHANGES)
    linear_function: LinearFunction = linear
    if recipe is not None:
        linear_function = fp8_linear_function(recipe, torch.device("cpu"))
    model = model_with(drawn.config, linear_function=linear_function, activation_checkpointing=mode, compiler=compiler).to(
        torch.bfloat16
    )
    model.load_state_dict(drawn.state_dict())
    return model


def loss_and_gradients(model: Transformer) -> dict[str, Tensor]:
    """Return the second loss, and gradients accumulated over two micro-batches, by name."""
    tokens, positions = tokens_and_positions(length=32)
    for micro_batch in tokens.split(1):
        loss = model(micro_batch, positions[:1], targets=micro_batch)
        loss.backward()
    results = {"loss": loss.detach()}
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            results[name] = weight.grad
    return results


def test_linear_layers_of_the_blocks_use_fp8() -> None:
    names = set()
    for name, module in make_model().named_modules():
        if isinstance(module, Linear) and module.linear_function is not linear:
            names.add(name)
    assert names == {f"blocks.{index}.{layer}" for index in range(3) for layer in LAYERS}


@pytest.mark.parametrize("mode", get_args(Mode))
def test_checkpointing_changes_no_gradient(mode: Mode) -> None:
    expected = loss_and_gradients(make_model())
    results = loss_and_gradients(make_model(mode))
    assert results.keys() == expected.keys()
    for name, result in results.items():
        assert torch.equal(result, expected[name]), name


@pytest.mark.parametrize("mode", get_args(Mode))
def test_fp8_saves_no_further_bytes(mode: Mode) -> None:
    """Lacking torchao, the planner counts the bytes without FP8."""
    assert saved_bytes(make_model(mode), 2, 32) == saved_bytes(make_model(mode, recipe=None), 2, 32)


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    torch._dynamo.reset()
    results = loss_and_gradients(make_model("full", compiler="aot_eager_decomp_partition"))
    for name, expected in loss_and_gradients(make_model("full")).items():
        assert torch.equal(results[name], expected), name
