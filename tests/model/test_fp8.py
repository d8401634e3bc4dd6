"""Models with FP8 products: which layers use FP8, activation checkpointing, compiling, and counts of the planner."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from megatape.accounting.saved_tensors import saved_bytes
from megatape.config import ActivationCheckpointing as Mode
from megatape.model.transformer import Transformer
from megatape.nn.fp8 import fp8_product
from megatape.nn.linear import Linear
from megatape.nn.product import linear
from tests.helpers.models.small_models import model_with, random_model, tokens_and_positions

pytestmark = pytest.mark.fp8
PRODUCTS = {f"attention.{name}" for name in ("query", "key", "value", "output")} | {
    f"mlp.{name}" for name in ("gate", "up", "down")
}
CHANGES: dict[str, Any] = {"num_kv_heads": 2, "attention_bias": "qkvo", "qk_norm": True}


def model(mode: Mode = "none", recipe: str | None = "tensorwise", compiler: str | None = None) -> Transformer:
    drawn = random_model(**CHANGES)
    product = fp8_product(recipe, torch.device("cpu")) if recipe else None
    made = model_with(drawn.config, fp8=product, activation_checkpointing=mode, compiler=compiler).to(torch.bfloat16)
    made.load_state_dict(drawn.state_dict())
    return made


def gradients(made: Transformer) -> dict[str, Tensor]:
    """Return the loss and gradients accumulated over two micro-batches."""
    tokens, positions = tokens_and_positions(length=32)
    for part in (tokens[:1], tokens[1:]):
        loss = made(part, positions[:1], targets=part)
        loss.backward()
    return {"loss": loss.detach()} | {name: p.grad for name, p in made.named_parameters() if p.grad is not None}


def test_products_of_the_blocks() -> None:
    made = model()
    found = {name for name, module in made.named_modules() if isinstance(module, Linear) and module.product is not linear}
    assert found == {f"blocks.{index}.{name}" for index in range(3) for name in PRODUCTS}


def test_checkpointing_changes_nothing_and_fp8_keeps_nothing() -> None:
    """Loss and gradients are bit-identical. Saved bytes are those planned without FP8, because the planner has no torchao."""
    expected = gradients(model())
    for mode in get_args(Mode):
        assert saved_bytes(model(mode), 2, 32) == saved_bytes(model(mode, None), 2, 32), mode
        found = gradients(model(mode))
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items()), mode


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    torch._dynamo.reset()
    found = gradients(model("full", compiler="aot_eager_decomp_partition"))
    for name, tensor in gradients(model("full")).items():
        assert torch.equal(found[name], tensor), name
