"""Peak memory of a model that reads a prompt."""

from typing import Any

import pytest
import torch

from megatape.config import ModelConfig
from megatape.lab.benchmark.exported import build
from megatape.lab.benchmark.peak_memory import peak_memory
from megatape.lab.benchmark.sessions import Workload
from tests.helpers.models.small_models import SHAPE

CPU = torch.device("cpu")
SMALL = ModelConfig(**SHAPE)


@pytest.fixture(scope="module")
def model() -> Any:
    return build(SMALL, ["tape"], 512, CPU, torch.float32)["tape"]


def growth(model: Any, attention: str) -> float:
    """Return the peak memory of 512 tokens over that of 256 tokens."""
    model.set_attn_implementation(attention)
    shorter = peak_memory(model, Workload(2, "left", 256).prompt(SMALL.vocab_size, CPU))
    longer = peak_memory(model, Workload(2, "left", 512).prompt(SMALL.vocab_size, CPU))
    return longer / shorter


def test_memory_grows_with_the_number_of_tokens(model: Any) -> None:
    assert growth(model, "sdpa") < 2.05


def test_memory_of_eager_attention_grows_with_the_number_of_pairs(model: Any) -> None:
    assert growth(model, "eager") > 3
