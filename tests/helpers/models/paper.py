"""Shape of the paper's 155M model."""

from typing import Any

from megatape.config import ModelConfig

PAPER: dict[str, Any] = {
    "num_layers": 12,
    "hidden_size": 768,
    "num_heads": 12,
    "mlp_size": 3072,
    "vocab_size": 32000,
    "position_size": 48,
}


def paper(encoding: str) -> ModelConfig:
    """Return the configuration for the paper's model with a position encoding."""
    return ModelConfig(encoding=encoding, max_positions=1024, **PAPER)
