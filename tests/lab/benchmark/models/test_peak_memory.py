"""Peak memory of a model reading a prompt."""

from typing import Any

import pytest
import torch

from megatape.config import ModelConfig
from megatape.lab.benchmark.models.exported import build
from megatape.lab.benchmark.models.sessions import PromptBatch, peak_memory
from tests.helpers.models.small_models import SHAPE

CPU = torch.device("cpu")
SMALL = ModelConfig(**SHAPE)


@pytest.fixture(scope="module")
def model() -> Any:
    return build(SMALL, ["tape"], 512, CPU, torch.float32)["tape"]


def growth(model: Any, attention: str) -> float:
    """Return the ratio between the peak memory for 512 and for 256 tokens."""
    model.set_attn_implementation(attention)
    shorter = peak_memory(model, PromptBatch(2, "left", 256).prompt(SMALL.vocab_size, CPU))
    longer = peak_memory(model, PromptBatch(2, "left", 512).prompt(SMALL.vocab_size, CPU))
    return longer / shorter


def test_memory_grows_with_the_number_of_tokens(model: Any) -> None:
    assert growth(model, "sdpa") < 2.05


def test_memory_of_eager_attention_grows_with_the_number_of_pairs(model: Any) -> None:
    assert growth(model, "eager") > 3
