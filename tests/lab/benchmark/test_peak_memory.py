"""Peak memory of a model that reads a prompt."""

import torch

from megatape.config import ModelConfig
from megatape.lab.benchmark.exported import build
from megatape.lab.benchmark.peak_memory import peak_memory
from megatape.lab.benchmark.sessions import Workload
from tests.helpers.models.small_models import SHAPE

CPU = torch.device("cpu")
SMALL = ModelConfig(**SHAPE)


def test_growth_with_length() -> None:
    """Memory grows with the number of tokens or, with eager attention, with the number of pairs."""
    models = build(SMALL, ["tape"], 512, CPU, torch.float32)
    peaks = {}
    for name in ("sdpa", "eager"):
        models["tape"].set_attn_implementation(name)
        peaks[name] = [
            peak_memory(models["tape"], Workload(2, "left", length).prompt(SMALL.vocab_size, CPU)) for length in (256, 512)
        ]
    assert peaks["sdpa"][1] < 2.05 * peaks["sdpa"][0]
    assert peaks["eager"][1] > 3 * peaks["eager"][0]
